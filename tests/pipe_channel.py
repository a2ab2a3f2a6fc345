"""A channel to an agent that is a child process of this machine: no SSH, all else is real."""

import contextlib
import os
import select
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from fork_server import ISOLATED, Forked, server

from spark_cluster.runner.wire import Channel, must_take

ENDS_WITHIN_S = 20.0
"""Seconds that an agent may take to end: more than its own limit (LEAVE_S of agent/main.py)."""


def _started(argv: Sequence[str]) -> subprocess.Popen[bytes] | Forked:
    first, *words = argv
    if first == "python3" and tuple(words[: len(ISOLATED)]) == ISOLATED:
        code, *words = words[len(ISOLATED) :]
        return server().start(code, words)
    return subprocess.Popen(
        [sys.executable if first == "python3" else first, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


class PipeChannel(Channel):
    """An agent as a process of this machine.

    Args:
        argv: the command; its first word is replaced by this interpreter when it is `python3`. An
            agent's own command line is started by the fork server.

    Attributes:
        on_sent: is given what the session sends, frames as a whole.
        on_data: is given what the agent sends, before the session is.
        was_killed: it did not end by itself when the connection did.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = _started(argv)
        self.was_killed = False
        self.on_sent: Callable[[bytes], object] = lambda _data: None
        self.on_data: Callable[[bytes], object] = lambda _data: None
        self._said: list[str] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._process.stderr:
            self._said.append(line.decode(errors="replace"))

    def send(self, data: bytes) -> None:
        self.on_sent(data)
        rest, begun = memoryview(data), time.monotonic()
        last = begun
        try:
            while rest:
                must_take(len(data) - len(rest), begun, last)
                handle = self._process.stdin.fileno()
                if select.select([], [handle], [], 1.0)[1]:
                    rest = rest[os.write(handle, rest[: select.PIPE_BUF]) :]
                    last = time.monotonic()
        except ValueError:
            raise BrokenPipeError("closed") from None

    def receive(self, timeout: float) -> bytes:
        try:
            if not self._selector.select(timeout):
                raise TimeoutError
            data = os.read(self._process.stdout.fileno(), 65536)
        except ValueError:  # closed meanwhile
            return b""
        self.on_data(data)
        if not data:
            self._listener.join(timeout=1)  # its last words are part of the end
        return data

    def stderr(self) -> str:
        return "".join(self._said)

    def status(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
            self._listener.join(timeout=1)
        return self._process.poll()

    def kill(self) -> None:
        """End the agent before it can say a word."""
        self._process.kill()

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # what it did not take any more
                self._process.stdin.close()
        try:
            self._process.wait(timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.was_killed = True
            self._process.kill()
            self._process.wait()
        self._listener.join(timeout=1)
        self._selector.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
