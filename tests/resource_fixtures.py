"""A scratch node: a folder for its root, and small commands that keep real state in files."""

import grp
import json
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from factories import apply as run_document
from factories import put
from fake_processes import FakeProcesses, script

from spark_cluster.node.host import Host
from spark_cluster.resources import unit
from spark_cluster.resources.base import Resource, from_wire, to_wire

COMMANDS = {
    "apt": ("apt-get", "apt-cache", "apt-mark", "dpkg", "dpkg-query"),
    "kernel": ("modprobe", "hostname"),
    "systemd": ("systemctl", "journalctl"),
    "accounts": ("useradd", "usermod", "userdel", "groupadd", "groupmod", "groupdel"),
    "docker": ("docker",),
    "nft": ("nft",),
    "network": ("netplan", "ip", "systemd-run", "systemctl"),
}


@dataclass
class Result:
    """The result of one resource."""

    event: dict[str, Any]

    @property
    def verdict(self) -> str:
        return str(self.event["verdict"])

    @property
    def error(self) -> str:
        return f"{self.event.get('error', '')} | {self.event.get('hint', '')}"

    @property
    def reason(self) -> str:
        return str(self.event.get("reason", ""))

    @property
    def diff(self) -> str:
        return str(self.event.get("diff", ""))


@dataclass
class Node:
    """A scratch node; `commands` are the fakes that it has."""

    root: Path
    bin: Path
    progress: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    fakes: dict[str, str] = field(default_factory=dict)

    def host(self, **options: Any) -> Host:
        self.runs += 1
        return Host(
            root=self.root,
            run_id=f"run{self.runs}",
            progress=self.progress.append,
            note=self.notes.append,
            processes=FakeProcesses(root=self.root, bin=self.bin, fakes=self.fakes),
            search_path=f"{self.bin}:/usr/bin:/bin",
            **options,
        )

    def apply(self, *resources: Resource, check: bool = False, host: Host | None = None) -> Result:
        """The result of the last resource, after its way over the wire."""
        return self.results(*resources, check=check, host=host)[-1]

    def check(self, *resources: Resource) -> Result:
        """In check mode, with proof that nothing was touched."""
        return self.results(*resources, check=True)[-1]

    def must_change(self, *resources: Resource) -> None:
        """Assert that check mode foretells a change of the last one, and that it comes."""
        assert self.check(*resources).verdict == "change"
        assert self.apply(*resources).verdict == "change"

    def must_be_ok(self, *resources: Resource) -> None:
        """Assert that there is nothing to do for the last one, and that check mode says so."""
        assert self.apply(*resources).verdict == "ok"
        assert self.check(*resources).verdict == "ok"

    def must_converge(self, *resources: Resource) -> None:
        """Assert that the last one is changed, and is as declared then."""
        self.must_change(*resources)
        self.must_be_ok(*resources)

    def results(
        self, *resources: Resource, check: bool = False, host: Host | None = None
    ) -> list[Result]:
        events: list[dict[str, Any]] = []
        travelled = [from_wire(json.loads(json.dumps(to_wire(r)))) for r in resources]
        before = snapshot(self.root) if check else {}
        run_document(travelled, host or self.host(check=check), events.append, diff=True)
        if check:
            assert snapshot(self.root) == before, "check mode changed something"
        json.dumps(events)
        return [Result(e) for e in events if e["event"] == "result"]

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def put(self, name: str, content: str | bytes = b"", mode: int = 0o644) -> Path:
        return put(self.path(name), content, mode)

    @contextmanager
    def state(self, fake: str) -> Iterator[Any]:
        """The state of a fake, to look at and to set."""
        path = self.root / "fakes" / f"{fake}.json"
        data = json.loads(path.read_text()) if path.exists() else {}
        yield data
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data))

    def calls(self, fake: str) -> list[list[str]]:
        """The argument lists that a fake was called with."""
        path = self.root / f"fakes/{fake}.json"
        return list(json.loads(path.read_text()).get("calls", [])) if path.exists() else []

    def changing_calls(self, fake: str) -> list[list[str]]:
        """Those that are not questions."""
        asking = {"inspect", "show", "dpkg-query", "apt-cache", "journalctl"}
        return [c for c in self.calls(fake) if not asking & set(c[:3])]

    def install(self, *fakes: str) -> None:
        """Put the commands of these fakes on the node."""
        self.bin.mkdir(exist_ok=True)
        for fake in fakes:
            for command in COMMANDS[fake]:
                self.fakes[command] = fake
                target = self.bin / command
                target.write_text(script(self.root, fake, command))
                target.chmod(0o755)


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """Every path with its kind, mode, owner and content; the fakes' logs of calls left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            content: Any = path.read_bytes()
            if path.parent.name == "fakes":
                content = {k: v for k, v in json.loads(content).items() if v and k != "calls"}
        else:
            content = os.readlink(path) if path.is_symlink() else None
        name = str(path.relative_to(root))
        found[name] = (status.st_mode, status.st_uid, status.st_gid, content)
    return {k: v for k, v in found.items() if k != "fakes" and v[3] != {}}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    root = tmp_path / "root"
    root.mkdir()
    return Node(root, tmp_path / "bin")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for."""
    monkeypatch.setattr("spark_cluster.resources.package.time.sleep", lambda _: None)
    limits = ("service._STAYS_S", "unit.STAYS_S", "unit.LOOK_EVERY_S", "command.RETRY_S")
    for limit in (*limits, "netplan.SETTLE_S"):
        monkeypatch.setattr(f"spark_cluster.resources.{limit}", 0.0)
    monkeypatch.setattr("spark_cluster.resources.clock_cap._FALLS_WITHIN_S", 0.3)


@pytest.fixture
def docker(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """The node with a docker; a container that is watched after its start is looked at quickly."""
    node.install("docker", "systemd")
    monkeypatch.setattr(unit, "LOOK_EVERY_S", 0.0)
    return node


@pytest.fixture
def accounts(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """The scratch node with its own /etc/passwd and /etc/group; `me` is whoever runs the tests."""
    node.install("accounts")
    me, mine = os.getuid(), os.getgid()
    node.put("/etc/passwd", f"me:x:{me}:{mine}::/home/me:/bin/sh\n")
    node.put("/etc/group", f"me:x:{mine}:\nvideo:x:44:\nrender:x:105:me\n")
    node.put("/bin/bash", "", mode=0o755)
    node.path("/home/me").mkdir(parents=True)

    def users() -> list[pwd.struct_passwd]:
        return [pwd.struct_passwd(r) for r in _rows(node.path("/etc/passwd"), (2, 3))]

    def groups() -> list[grp.struct_group]:
        rows = _rows(node.path("/etc/group"), (2,))
        return [grp.struct_group((*r[:3], r[3].split(",") if r[3] else [])) for r in rows]

    def find(items: Callable[[], list[Any]], place: int) -> Callable[[Any], Any]:
        def lookup(key: Any) -> Any:
            for item in items():
                if item[place] == key:
                    return item
            raise KeyError(key)

        return lookup

    monkeypatch.setattr(pwd, "getpwnam", find(users, 0))
    monkeypatch.setattr(pwd, "getpwuid", find(users, 2))
    monkeypatch.setattr(grp, "getgrnam", find(groups, 0))
    monkeypatch.setattr(grp, "getgrgid", find(groups, 2))
    monkeypatch.setattr(grp, "getgrall", groups)
    return node


def _rows(path: Path, numbers: tuple[int, ...]) -> list[tuple[Any, ...]]:
    rows = [line.split(":") for line in path.read_text().splitlines()]
    return [tuple(int(v) if i in numbers else v for i, v in enumerate(row)) for row in rows]
