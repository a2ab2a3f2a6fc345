"""Nodes and clusters for tests: the real play, connections, sessions and agents over nodes whose
root is a folder of this machine, and whose hardware and programs are what the test says.

Nothing of ours is replaced: what a playbook does is seen in the nodes' files, in the calls of their
programs (`docker`, `nvidia-smi`, `systemctl`, ...) and in the run's events, as on a Spark.
"""

import io
import json
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import fake_processes
from factories import GIB_KIB, SPARK_GIB, make_inventory, put
from fake_programs import Programs, Said
from pipe_channel import PipeChannel

from spark_cluster.agent import frames
from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.project import Project
from spark_cluster.errors import Unreachable
from spark_cluster.runner import wire
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.events import Bus, Event, Note, Options, Result, StageStarted
from spark_cluster.runner.node_connection import LocalConnection
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

KEPT = {"docker": "docker", "systemctl": "systemd", "journalctl": "systemd", "nft": "nft"}
"""Programs that keep their state in a file, and the module of `resources/fakes` that they are."""
NOT_THERE = {
    *("apt-cache", "apt-get", "apt-mark", "dpkg", "dpkg-query", "ethtool", "haproxy", "modprobe"),
    *("netplan", "rdma", "reboot", "shutdown", "sshd", "sysctl", "systemd-run", "useradd"),
    *("usermod", "groupadd"),
}
"""Programs of a node that a fake one lacks unless a test gives it one: never this machine's."""
ROLE = """\
from pathlib import Path
from factories import SHIPPED
from piped_cluster import given
from spark_cluster.resources import File

Settings = SHIPPED.load_role("{name}").settings_model

def role(node, settings):
    given(Path(__file__), node.name, settings)
    yield File("/roles/{name}", content="")
"""
HEAD = ", roles: [head]"
BOOT_ID = "/proc/sys/kernel/random/boot_id"

_given: dict[Path, dict[str, Any]] = {}


def given(role: Path, node: str, settings: Any) -> None:
    """Keep the settings that a role of `PipedCluster.marked` was applied with last, by node."""
    _given.setdefault(role, {})[node] = settings


_one_at_a_time = threading.Lock()
"""Held while a kept program prints, for which this process' outputs are taken."""


class PipedNode:
    """A node: a folder, its memory, GPU and network, and its programs.

    Attributes:
        programs: functions by name; a test may replace or add some at any time.
        available_gib: memory that nothing holds but containers, GiB.
        held: what the GPU's processes hold.
        when_read: is called before nvidia-smi tells that, and may change it.
        gpu: the line that nvidia-smi prints of it.
        addresses: of its interface `eth0`.
        fabric: its address on the link; empty without a cable.
        host_key: returns the host key that it shows; None where it is reached without one.
        away: connections to it that fail before one is made again; the node `lost` has no other.
        dialled: connections to it that were tried.
        sessions: with its agents, in the order in which they were begun.
    """

    def __init__(self, folder: Path, name: str, address: str, number: int) -> None:
        self.name, self.root = name, folder / name
        self.root.mkdir(exist_ok=True)
        self.away = sys.maxsize if name == "lost" else 0
        self.dialled = 0
        self.sessions: list[Session] = []
        self.channels: list[PipeChannel] = []
        self.sent: list[bytes] = []
        self.programs = Programs(folder / f"{name}-calls", self.root / "usr/local/bin", NOT_THERE)
        self.programs["nvidia-smi"] = self._nvidia_smi
        self.programs["ip"] = self._ip
        self.programs["ibdev2netdev"] = self._ibdev2netdev
        self.programs["ss"] = lambda _words, _stdin: ""  # nothing listens
        for command in KEPT:
            self.programs[command] = partial(self._kept, command)
        self.gpu = "NVIDIA GB10, 12.1, 580.95.05, 40, 10.0, 2400, [N/A], [N/A]"
        self.held: list[GpuProcess] = []
        self.when_read: Callable[[], object] = lambda: None
        self.addresses = [f"{address}/24"]
        self.host_key: Callable[[], bytes | None] = lambda: None
        self.fabric = f"192.168.177.{10 + number}/24"
        self.available_gib = 118.0

    @property
    def available_gib(self) -> float:
        return self._available_gib

    @available_gib.setter
    def available_gib(self, gib: float) -> None:
        self._available_gib = gib
        self._tell_memory()

    def _tell_memory(self) -> None:
        with self.state("docker") as docker:
            known = docker.get("containers", {}).values()
            runs = [one for one in known if one["State"]["Status"] == "running"]
            available = self._available_gib - sum(one.get("holds_gib", 0) for one in runs)
        kib = {"MemTotal": SPARK_GIB, "MemAvailable": available, "Cached": 0}
        lines = (f"{name}: {round(gib * GIB_KIB)} kB\n" for name, gib in kib.items())
        self.put("/proc/meminfo", "".join(lines))

    def put(self, path: str, content: str | bytes = "", mode: int = 0o644) -> Path:
        """Write a file of the node."""
        return put(self.root / path.lstrip("/"), content, mode)

    def text(self, path: str) -> str | None:
        """Return the text of a file of the node; None where there is none."""
        file = self.root / path.lstrip("/")
        return file.read_text() if file.exists() else None

    @contextmanager
    def state(self, fake: str) -> Iterator[dict[str, Any]]:
        """The state of `docker`, `systemd` or `nft`, to look at and to set."""
        with _one_at_a_time:
            file = self.root / f"fakes/{fake}.json"
            found = json.loads(file.read_text()) if file.exists() else {}
            yield found
            put(file, json.dumps(found))

    def run_container(
        self,
        name: str,
        labels: dict[str, str] | None = None,
        command: Sequence[str] = (),
        *,
        status: str = "running",
        exit_code: int = 0,
        pids: Sequence[int] = (),
        restarts: int = 0,
        holds_gib: float = 0,
    ) -> None:
        """Have a container as Docker describes it.

        Args:
            pids: its processes, as the host numbers them.
            holds_gib: memory that it takes from what is available while it runs.
        """
        with self.state("docker") as docker:
            containers = docker.setdefault("containers", {})
            containers[name] = {
                "Name": f"/{name}",
                "Id": f"{len(containers) + 1:064x}",
                "Image": f"sha256:{'1' * 64}",
                "RestartCount": restarts,
                "State": {"Status": status, "ExitCode": exit_code},
                "Config": {"Labels": labels or {}, "Cmd": list(command), "Env": []},
                "restart": "unless-stopped",
                "pids": list(pids),
                "holds_gib": holds_gib,
            }
        self._tell_memory()

    def have_image(self, ref: str, *digests: str, number: str = "1", at: str = "images") -> None:
        """Have an image of this machine's architecture in Docker, with these digests.

        Args:
            at: `registry` has it there instead, where it is pulled by its name and by its digests.
        """
        repository = ref.rpartition(":")[0]
        named = [f"{repository}@{one}" for one in digests]
        machine = os.uname().machine
        image = {
            "Id": f"sha256:{number * 64}",
            "RepoDigests": named,
            "RootFS": {"Layers": ["sha256:a"]},
            "Size": 5_000_000_000,
            "Os": "linux",
            "Architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        }
        names = [ref, *(named if at == "registry" else [])]
        with self.state("docker") as docker:
            docker.setdefault(at, {}).update(dict.fromkeys(names, image))

    def log(self, container: str, text: str) -> None:
        """Have a container's log, also of one that comes later."""
        with self.state("docker") as docker:
            docker.setdefault("behaviour", {}).setdefault(container, {})["log"] = text

    def remove_container(self, name: str) -> None:
        """Have a container no more, as when someone else removes it."""
        with self.state("docker") as docker:
            del docker["containers"][name]
        self._tell_memory()

    @property
    def containers(self) -> dict[str, str]:
        """Container to its status."""
        with self.state("docker") as docker:
            known = docker.get("containers", {})
            return {name: one["State"]["Status"] for name, one in known.items()}

    def calls(self, program: str) -> list[list[str]]:
        """Return the words of each call of a program, without its name."""
        return [words for name, *words in self.programs.calls if name == program]

    def requests(self, op: str) -> list[dict[str, Any]]:
        """Return the requests of an operation that the node's agents were sent, in their order."""
        sent = b"".join(self.sent)  # begins with the text of the bootstrap, which is no frame
        begins = [one.start() for one in re.finditer(b'{"op":"%s",' % op.encode(), sent)]
        return [json.loads(frames.read_raw(io.BytesIO(sent[at - 4 :])) or b"") for at in begins]

    def session(self) -> Session:
        """Begin a session with a real agent, unless the node is away."""
        self.dialled += 1
        if self.away:
            self.away -= 1
            raise Unreachable(
                "no answer", where=self.name, hint="switch it on, then `spark-cluster ping`"
            )
        channel = PipeChannel(wire.argv("test"))
        channel.on_sent = self.sent.append
        self.channels.append(channel)
        self.sessions.append(Session(self.name, channel, as_root=False, root=str(self.root)))
        return self.sessions[-1]

    def reboots(self, away: int = 2) -> None:
        """Have it be another boot, and be away for some connections, when it is told to reboot."""

        def reboot(_words: list[str], _stdin: str) -> str:
            (self.root / "run/reboot-required").unlink(missing_ok=True)
            self.put(BOOT_ID, uuid.uuid4().hex)
            self.away = away
            return ""

        self.put(BOOT_ID, "first\n")
        self.programs["systemd-run"] = reboot

    def lose(self) -> None:
        """End the node's agents at once, as when it loses its power."""
        for channel in self.channels:
            channel.kill()

    def close(self) -> None:
        """End the agents, each of which has to go by itself, then the programs; none begins now."""
        self.away = sys.maxsize
        for session in self.sessions:
            session.close()
        assert not any(channel.was_killed for channel in self.channels), "an agent hung"
        self.programs.close()
        assert not self.programs.faults, self.programs.faults[0]

    def _nvidia_smi(self, words: list[str], _stdin: str) -> str:
        if words[0].startswith("--query-gpu"):
            return f"{self.gpu}\n"
        assert words[0].startswith("--query-compute-apps"), words
        self.when_read()
        return "".join(f"{p.pid}, {p.name}, {p.used_mib or '[N/A]'}\n" for p in self.held)

    def _ip(self, words: list[str], _stdin: str) -> str:
        if words == ["-j", "neigh"]:
            return "[]"
        assert words == ["-j", "addr"], words
        links = {"eth0": self.addresses, **({"enp1s0f1np1": [self.fabric]} if self.fabric else {})}
        rows = []
        for name, addresses in links.items():
            given = [one.split("/") for one in addresses]
            info = [{"family": "inet", "local": ip, "prefixlen": int(n)} for ip, n in given]
            up = {"operstate": "UP", "flags": ["UP", "LOWER_UP"], "mtu": 9000}
            rows.append({"ifname": name, **up, "addr_info": info})
        return json.dumps(rows)

    def _ibdev2netdev(self, _words: list[str], _stdin: str) -> str:
        return f"rocep1s0f1 port 1 ==> enp1s0f1np1 ({'Up' if self.fabric else 'Down'})\n"

    def _kept(self, command: str, words: list[str], stdin: str) -> Said:
        """Answer as the fake of `resources/fakes` does."""
        with _one_at_a_time:
            status, out, err = fake_processes.call(self.root, KEPT[command], command, words, stdin)
        if command == "docker" and words[0] in ("rm", "stop", "start"):
            self._tell_memory()
        return Said(out, err, status)


class Piped(LocalConnection):
    """A connection to a node of this machine: its agents are processes here."""

    user = "nvidia"

    def __init__(self, node: PipedNode) -> None:
        super().__init__(node.name, root=str(node.root))
        self._node = node

    def session(self, run: str, *, become: bool = True) -> Session:
        return self._node.session()

    def host_key(self) -> bytes | None:
        return self._node.host_key()


class Dials(Dialer):
    """Reaches nodes in the way that a test says; no tunnel leads to ports of this machine."""

    def __init__(self, dial: Callable[[InventoryNode], Any]) -> None:
        super().__init__()
        self._dial = dial

    def dial(self, node: InventoryNode) -> Any:
        return self._dial(node)

    def forward(self, node: InventoryNode, port: int) -> AbstractContextManager[int]:
        return nullcontext(port)


class PipedNodes(dict[str, PipedNode]):
    """Nodes by name, each of which is made when it is first asked for: a folder in `folder`.

    A run that was ended may still be dialling from its threads: after `close` it finds no node.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._lock = threading.Lock()
        self._closed = False

    def __missing__(self, name: str) -> PipedNode:
        with self._lock:
            if self._closed:
                raise Unreachable("the test is over", where=name, hint="end its runs first")
            if name not in self:
                number = len(self) + 1
                self[name] = PipedNode(self.folder, name, f"10.0.0.{number}", number)
            return self[name]

    def dial(self, node: InventoryNode) -> Piped:
        return Piped(self[node.name])

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for node in self.values():
            node.close()


class Events(list[Event]):
    """A sink that keeps what it is told."""

    def take(self, event: Event) -> None:
        self.append(event)

    def close(self) -> None:
        return None

    def of(self, kind: str) -> list[Any]:
        """Return the events of a class, by its name."""
        return [event for event in self if type(event).__name__ == kind]

    def verdicts(self, node: str) -> dict[str, str]:
        """Return the verdict on each resource of a node."""
        return {event.resource: event.verdict for event in self.of("Result") if event.node == node}


def play_on(
    inventory: Inventory,
    project: Project,
    dial: Callable[[InventoryNode], Any],
    bus: Bus,
    options: Options | None = None,
    *,
    run: str = "r1",
    change: bool = True,
    gather_facts: bool = False,
) -> Play:
    """Return a play over the nodes of an inventory, connected; who failed is out of it."""
    connections = Connections(
        inventory.nodes, bus, run, command="test", change=change, gather_facts=gather_facts,
        dialer=Dials(dial),
    )  # fmt: skip
    failed = connections.open()
    play = Play(inventory, project, connections, bus, options or Options())
    play.out.update(failed)
    return play


def nodes_at(addresses: Mapping[str, str]) -> str:
    """Return the section `nodes` of an inventory; the first node is the head."""
    first = next(iter(addresses))
    rows = (
        f"  {name}: {{address: {at}{HEAD if name == first else ''}}}"
        for name, at in addresses.items()
    )
    return "\n".join(["nodes:", *rows, ""])


def play_over(
    folder: Path,
    dial: Callable[[InventoryNode], Any],
    names: Sequence[str] = ("spark1", "spark2"),
    options: Options | None = None,
    **how: Any,
) -> tuple[Play, Events]:
    """Return a play over the nodes of these names in a project, and what it tells."""
    inventory = make_inventory(folder, nodes_at({name: name for name in names}))
    events = Events()
    return play_on(inventory, Project(folder), dial, Bus(events), options, **how), events


class PipedCluster:
    """Nodes and a play over them, connected.

    Args:
        folder: where its files are; made.
        names: of the nodes; the first one is the head.
        more: further lines of the inventory.
        options: of the run.
        network: of their management addresses; one of the loopback where copies may go over it.

    Attributes:
        project: the user's project folder, before what is shipped.
        events: of the run.
        on_event: is given each event, while the run waits.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        more: str = "",
        options: Options | None = None,
        network: str = "10.0.0",
    ) -> None:
        folder.mkdir()
        at = {name: f"{network}.{number}" for number, name in enumerate(names, 1)}
        self.nodes = {
            name: PipedNode(folder, name, at[name], number) for number, name in enumerate(names, 1)
        }
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda _event: None
        self.project = folder / "project"
        self.project.mkdir()
        inventory = make_inventory(self.project, nodes_at(at) + more)
        self.play = play_on(inventory, Project(self.project), self.dial, Bus(self), options)
        assert not self.play.out, self.play.out

    def dial(self, node: InventoryNode) -> Piped:
        return Piped(self.nodes[node.name])

    @property
    def head(self) -> PipedNode:
        """The first node."""
        return next(iter(self.nodes.values()))

    def take(self, event: Event) -> None:
        """Keep an event of the run, and hand it to `on_event`."""
        self.events.append(event)
        self.on_event(event)

    def close(self) -> None:
        self.play.connections.close()
        for node in self.nodes.values():
            node.close()

    @property
    def containers(self) -> dict[str, list[str]]:
        """Node to its containers."""
        return {name: sorted(node.containers) for name, node in self.nodes.items()}

    # -- what the run did ------------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        """What the user was told, with the node before it."""
        told = [event for event in self.events if isinstance(event, Note)]
        return [f"{one.node}: {one.text}" if one.node else one.text for one in told]

    @property
    def stages(self) -> list[str]:
        """The stages of the run."""
        return [event.stage for event in self.events if isinstance(event, StageStarted)]

    def applied(self, of: str = "") -> list[str]:
        """Return node and id of each resource that was applied, in the order of the results.

        Args:
            of: the resource's id contains this.
        """
        found = [event for event in self.events if isinstance(event, Result)]
        return [f"{one.node} {one.resource}" for one in found if of in one.resource]

    # -- a user's project ------------------------------------------------------------------------

    def marked(self, *roles: str) -> None:
        """Have roles of the project's own that only leave a file in /roles, where the shipped ones
        need more of a node than a fake one has."""
        for node in self.nodes.values():
            (node.root / "roles").mkdir(exist_ok=True)
        for name in roles:
            put(self.project / f"roles/{name}/__init__.py", ROLE.format(name=name))

    def roles(self, node: str = "") -> list[str]:
        """Return the roles of `marked` that were applied on a node, the head if none is named."""
        start = f"{node or self.head.name} File:/roles/"
        return [one.removeprefix(start) for one in self.applied() if one.startswith(start)]

    def settings(self, role: str, node: str = "") -> Any:
        """Return the settings that a role of `marked` was given last, for the head if no node is
        named."""
        return _given[self.project / f"roles/{role}/__init__.py"][node or self.head.name]

    def run(self, playbook: str, **given: Any) -> Any:
        """Run a playbook; what it returns."""
        return self.play.project.load_playbook(playbook).function(self.play, **given)

    def playbook(self, name: str, text: str) -> None:
        """Have a playbook of the project's own."""
        put(self.project / f"playbooks/{name}.py", text)


Make = Callable[..., PipedCluster]
"""The fixture `piped_cluster`: names of nodes, and options of PipedCluster."""


@contextmanager
def clusters_in(folder: Path, agents_home: Path) -> Iterator[Make]:
    """Yield what makes clusters in a folder, which are closed at the end.

    Args:
        agents_home: where the agents keep their code.
    """
    with ExitStack() as stack:

        def make(*names: str, **options: Any) -> PipedCluster:
            place = folder / f"cluster{len(list(folder.glob('cluster*')))}"
            with mock.patch.dict(os.environ, {"HOME": str(agents_home)}):
                made = PipedCluster(place, names or ("spark1", "spark2"), **options)
            stack.callback(made.close)
            return made

        yield make
