"""The machine itself as a node: agents over pipes (`connection: local`)."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import IO

from spark_cluster.errors import Unreachable
from spark_cluster.node.processes import SEARCH_PATH
from spark_cluster.runner.channel import SLICE, Channel
from spark_cluster.runner.node_connection import NodeConnection

KEPT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "USER")
"""Variables of the caller that an agent gets; others may hold secrets."""

SAID_BYTES = 1 << 20
"""Of standard error that are kept."""

LEAVES_WITHIN_S = 5.0
"""Seconds in which an agent usually ends after its input has; it is not waited for longer, and
finishes what must be finished."""


class LocalChannel(Channel):
    """An agent's standard input and output, a socket as sshd gives it one.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        ours.settimeout(1.0)
        # A session of its own: Ctrl-C on the terminal is for the run, which then ends its agents.
        try:
            with theirs:
                self._process = subprocess.Popen(
                    list(argv),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    env=dict(env),
                    cwd=Path.home() if Path.home().is_dir() else "/",
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        self._said = bytearray()
        arguments = (self._process.stderr,)
        self._listener = threading.Thread(target=self._listen, args=arguments, daemon=True)
        self._listener.start()

    def receive(self, timeout: float) -> bytes:
        try:
            data = super().receive(timeout)
        except TimeoutError:
            raise
        except OSError:  # it is closed, or has ended and left some of what was sent to it
            data = b""
        if not data:
            self._listener.join(timeout=1)  # its last words are part of the end
        return data

    def stderr(self) -> str:
        return bytes(self._said).decode(errors="replace")

    def status(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
            self._listener.join(timeout=1)
        return self._process.poll()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed, or the agent has ended
            self._stream.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=LEAVES_WITHIN_S)
        self._listener.join(timeout=1)
        self._stream.close()

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            while data := os.read(pipe.fileno(), SLICE):
                self._said += data[: SAID_BYTES - len(self._said)]


@dataclass(eq=False)
class LocalConnection(NodeConnection):
    """Agents on this machine.

    Args:
        node: its name in the inventory.
        sudo_password: asks for what sudo may want; None: it wants none.
        root: where the node's file system begins; "/" but in tests.
    """

    node: str
    sudo_password: Callable[[], str | None] = lambda: None
    _: KW_ONLY
    root: str = "/"

    @property
    def user(self) -> str:
        return pwd.getpwuid(os.geteuid()).pw_name

    def start(self, argv: Sequence[str]) -> LocalChannel:
        try:
            return LocalChannel(argv, self.environment())
        except OSError as error:
            raise Unreachable(
                f"{argv[0]} cannot be started on this machine: {error.strerror}",
                where=self.node,
                hint="connection: local needs python3, and sudo unless you are root",
            ) from None

    def environment(self) -> dict[str, str]:
        """Return the environment of an agent.

        The search path is not the caller's, which may begin with a virtual environment: an agent
        finds what it would find over SSH.
        """
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, "PATH": SEARCH_PATH}

    def close(self) -> None:
        """Nothing is open but the agents, which their sessions end."""
