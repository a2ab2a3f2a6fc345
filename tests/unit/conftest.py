"""Unit tests start no process and open no socket: they run at every save."""

import sys
from collections.abc import Iterator

import ifaddr  # it asks ldconfig as it is imported: before any test
import pytest

SLOW = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
SLOW |= {"socket.connect", "socket.bind"}

_running = False


def _refuse(event: str, _args: tuple[object, ...]) -> None:
    if _running and event in SLOW:
        pytest.fail(f"{event}: a test that starts a process or a socket stands in tests/process")


sys.addaudithook(_refuse)  # for good: Python has no way to take one back


@pytest.fixture(autouse=True)
def no_process() -> Iterator[None]:
    global _running  # noqa: PLW0603
    _running = True
    yield
    _running = False
