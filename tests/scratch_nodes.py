"""Nodes for tests of the engine: real agents on scratch roots, a dial that can fail, a reboot."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from factories import load_inventory, put
from pipe_channel import PipeChannel

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.project import Project
from spark_cluster.errors import Unreachable
from spark_cluster.runner import wire
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.events import Bus, Options
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

BOOT_ID = "proc/sys/kernel/random/boot_id"

REBOOTS = """\
import sys, uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
root = Path({root!r})
(root / "calls").open("a").write(" ".join(sys.argv[1:]) + chr(10))
if (root / "stubborn").exists():
    sys.exit(0)
(root / "run/reboot-required").unlink(missing_ok=True)
(root / {boot_id!r}).write_text(uuid.uuid4().hex)
(root / "down").write_text((root / "stays_down").read_text())
"""


class ScratchNode:
    """A node whose root is a folder; it can be rebooted, and be away for some connections."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dialled = 0
        self.sessions: list[Session] = []
        self.put(BOOT_ID, "first\n")
        self.put("stays_down", "2")
        self.command("systemd-run", REBOOTS.format(root=str(root), boot_id=BOOT_ID))

    def put(self, name: str, text: str) -> Path:
        return put(self.root / name.lstrip("/"), text)

    def text(self, name: str) -> str:
        return (self.root / name.lstrip("/")).read_text()

    def command(self, name: str, text: str) -> None:
        """Give it a command of its own, in Python."""
        path = self.put(f"usr/local/bin/{name}", f"#!{sys.executable} -IS\n{textwrap.dedent(text)}")
        path.chmod(0o755)

    def dial(self) -> Dialled:
        return Dialled(self)


class Dials(Dialer):
    """Reaches nodes by `dial` instead of SSH."""

    def __init__(self, dial: Callable[[InventoryNode], Any]) -> None:
        super().__init__()
        self._dial = dial

    def dial(self, node: InventoryNode) -> Any:
        return self._dial(node)


class Dialled:
    """Stands for an SSH connection."""

    def __init__(self, node: ScratchNode) -> None:
        self.node = node

    def session(self, run: str, *, become: bool = True) -> Session:
        node = self.node
        node.dialled += 1
        down = node.root / "down"
        left = int(down.read_text()) if down.exists() else 0
        if left:
            down.write_text(str(left - 1))
            raise Unreachable("refused the connection", where=node.root.name)
        channel = PipeChannel(wire.argv(run))
        session = Session(node.root.name, channel, as_root=False, root=str(node.root))
        node.sessions.append(session)
        return session

    user = "me"

    def host_key(self) -> None:
        return None

    def close(self) -> None:
        return None


class Events:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.all = []

    def take(self, event) -> None:
        self.all.append(event)

    def close(self) -> None:
        return None

    def of(self, kind):
        return [e for e in self.all if type(e).__name__ == kind]

    def verdicts(self, node):
        return {e.resource: e.verdict for e in self.of("Result") if e.node == node}


def play_over(
    folder: Path,
    nodes: dict[str, ScratchNode],
    options=None,
    run="r1",
    change=True,
    gather_facts=True,
):
    """A play over scratch nodes, connected, and what it tells."""
    text = "nodes:\n" + "".join(f"  {name}:\n    address: {name}\n" for name in nodes)
    (folder / "inventory.yaml").write_text(
        text.replace("    address", "    roles: [head]\n    address", 1)
    )
    project = Project(folder)
    inventory = load_inventory(None, project)
    events = Events()
    bus = Bus(events)
    connections = Connections(
        inventory.nodes,
        bus,
        run,
        command="test",
        change=change,
        gather_facts=gather_facts,
        dialer=Dials(lambda node: nodes[node.name].dial()),
    )
    failed = connections.open()
    play = Play(inventory, project, connections, bus, options or Options())
    play.out.update(failed)
    return play, events
