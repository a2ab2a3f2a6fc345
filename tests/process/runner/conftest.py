"""Fixtures of the engine's tests: a real sshd and connections to it; plays over scratch nodes."""

import getpass
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from own_sshd import SSHD, Sshd, start_sshd, way_to
from piped_cluster import play_over
from waiting import HANG_S

from spark_cluster.runner import delivery
from spark_cluster.runner.dialer import SshConnection, Target


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.skip("no sshd here (package openssh-server)")
    server = start_sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def second_sshd(sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Another one, with another host key, that lets the same key in."""
    server = start_sshd(tmp_path_factory.mktemp("sshd2"), key=sshd.key)
    yield server
    server.stop()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the laptop's user without any SSH files, and no SSH agent."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


@pytest.fixture
def trusted(sshd: Sshd, home: Path) -> Path:
    """The known_hosts file of the user, in which the sshd is known."""
    path = home / ".ssh" / "known_hosts"
    path.write_text(sshd.host_line)
    return path


@pytest.fixture
def target(sshd: Sshd, home: Path) -> Callable[..., Target]:
    """`target(port=...)`: the way to the tests' sshd."""

    def make(**given: Any) -> Target:
        usual = {"port": sshd.port, "identity_file": sshd.key, "connect_timeout_s": HANG_S}
        return way_to(**{"user": getpass.getuser(), **usual, **given})

    return make


@pytest.fixture
def ssh(target: Callable[..., Target]) -> Iterator[Callable[..., SshConnection]]:
    """`ssh(port=...)`: a connection to the tests' sshd, closed at the end."""
    made: list[SshConnection] = []

    def connection(**options: Any) -> SshConnection:
        made.append(SshConnection(target(**options)))
        return made[-1]

    yield connection
    for one in made:
        one.close()


@pytest.fixture
def nodes(piped_nodes, monkeypatch):
    """`nodes["spark1"]`, `nodes["spark2"]`; what waits for a node to come back waits no longer."""
    monkeypatch.setattr(delivery, "FIRST_TRY_S", 0.0)
    monkeypatch.setattr(delivery, "PAUSES", (0.01, 0.05))
    monkeypatch.setattr(delivery, "RECONNECT_S", HANG_S)
    for name in ("spark1", "spark2"):
        piped_nodes[name].reboots()
    return piped_nodes


@pytest.fixture
def start(tmp_path, nodes):
    """`start() -> (play, events)`: a play over both nodes, or the named ones."""
    started = []

    def begin(*names, **options):
        options = {"gather_facts": True, **options}
        play, events = play_over(tmp_path, nodes.dial, names or tuple(nodes), **options)
        started.append(play)
        return play, events

    yield begin
    for play in started:
        play.connections.close()
