"""What several folders of tests share: a limit on time, real agents on scratch roots."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from spark_cluster.engine import payload
from spark_cluster.engine.channel import PipeChannel
from spark_cluster.engine.connections import Connections
from spark_cluster.engine.session import Session
from spark_cluster.errors import Unreachable
from spark_cluster.facts.model import Facts

LIMIT_S = 10

# How long an example takes decides nothing; where CI is set, each run has the same examples.
settings.register_profile(
    "spark",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("spark")


def pytest_configure() -> None:
    """Have Ctrl-C mean something, also where a shell started the tests in the background: tests
    interrupt the programs that they start, and an ignored signal is inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def time_limit() -> Iterator[None]:
    """Fails a test that hangs, instead of the whole suite."""

    def too_long(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"the test took more than {LIMIT_S} s")

    old = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture(scope="session")
def agents_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where agents keep their code, one for all tests, so that it is sent and compiled once."""
    return tmp_path_factory.mktemp("agents")


@pytest.fixture
def agent(
    tmp_path: Path, agents_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Session]]:
    """`agent("spark1")`: a session with a real agent whose root is the folder of that name."""
    monkeypatch.setenv("HOME", str(agents_home))
    started: list[Session] = []

    def start(name: str = "spark1", **options: Any) -> Session:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        channel = PipeChannel(payload.argv("test"))
        started.append(Session(name, channel, as_root=False, root=str(root), **options))
        return started[-1]

    yield start
    for session in started:
        session.close()


@pytest.fixture
def pipes(agent: Callable[..., Session]) -> type[Connections]:
    """Connections whose nodes are folders with real agents; the node `lost` cannot be reached."""

    class Pipes(Connections):
        def _open(self, name: str) -> None:
            if name == "lost":
                raise Unreachable("no answer", where=name, hint="switch it on")
            self._join(name)
            self.enter(name)

        def _join(self, name: str) -> Session:
            self._sessions[name] = agent(name)
            return self._sessions[name]

        def enter(self, name: str) -> None:
            self.facts[name] = Facts(hostname=name)
            self.users[name] = "nvidia"

    return Pipes
