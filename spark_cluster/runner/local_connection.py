"""The machine itself, or namespaces on it, as a node: agents over pipes (`connection: local`)."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import IO

from spark_cluster.errors import Unreachable
from spark_cluster.node.processes import SEARCH_PATH
from spark_cluster.runner import namespaces
from spark_cluster.runner.agent_errors import why_no_agent
from spark_cluster.runner.channel import must_take
from spark_cluster.runner.node_connection import agent_argv
from spark_cluster.runner.session import Session

KEPT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "USER")
"""Variables of the caller that an agent gets; others may hold secrets."""

SAID_BYTES = 1 << 20
"""Of standard error that are kept."""

LEAVES_WITHIN_S = 5.0
"""Seconds in which an agent usually ends after its input has; it is not waited for longer, and
finishes what must be finished."""


def environment(*, in_namespaces: bool) -> dict[str, str]:
    """Return the environment of an agent: on this machine, or in namespaces, where the caller has
    no home.

    The search path is not the caller's, which may begin with a virtual environment: an agent finds
    what it would find over SSH.
    """
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    if in_namespaces:
        root = pwd.getpwuid(0)
        kept |= {"HOME": root.pw_dir, "LOGNAME": root.pw_name, "USER": root.pw_name}
    return {**kept, "PATH": SEARCH_PATH}


class LocalChannel:
    """An agent's pipes; see `spark_cluster.runner.channel.Channel`.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        # A session of its own: Ctrl-C on the terminal is for the run, which then ends its agents.
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=Path.home() if Path.home().is_dir() else "/",
            start_new_session=True,
        )
        self._closing = threading.Lock()
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, data: bytes) -> None:
        rest, begun = memoryview(data), time.monotonic()
        last = begun
        while rest:
            must_take(len(data) - len(rest), begun, last)
            pipe = _open(self._process.stdin)
            if select.select([], [pipe], [], 1.0)[1]:
                rest = rest[os.write(pipe.fileno(), rest[: select.PIPE_BUF]) :]
                last = time.monotonic()

    def receive(self, timeout: float) -> bytes:
        try:
            pipe = _open(self._process.stdout)
            if not select.select([pipe], [], [], timeout)[0]:
                raise TimeoutError
            data = os.read(pipe.fileno(), 65536)
        except (BrokenPipeError, ValueError):  # closed meanwhile
            return b""
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
        with self._closing:
            _shut(self._process.stdin)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=LEAVES_WITHIN_S)
            self._listener.join(timeout=1)
            _shut(self._process.stdout)

    def _listen(self) -> None:
        pipe = self._process.stderr
        while pipe is not None and (data := os.read(pipe.fileno(), 65536)):
            self._said += data[: SAID_BYTES - len(self._said)]
        _shut(pipe)


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None or pipe.closed:
        raise BrokenPipeError("closed")
    return pipe


def _shut(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):  # what it did not take any more
            pipe.close()


@dataclass(eq=False)
class LocalConnection:
    """Agents on this machine; see `spark_cluster.runner.node_connection.NodeConnection`.

    Args:
        node: its name in the inventory.
        sudo_password: asks for what sudo may want; None: it wants none.
        namespaces_of: file with the number of the process whose namespaces are the node; None:
            the node is the machine itself.
        root: where the node's file system begins; "/" but in tests.
    """

    node: str
    sudo_password: Callable[[], str | None] = lambda: None
    _: KW_ONLY
    namespaces_of: Path | None = None
    root: str = "/"

    @property
    def user(self) -> str:
        return pwd.getpwuid(os.geteuid()).pw_name

    def session(self, run: str, *, become: bool = True) -> Session:
        user = self.user
        is_root = user == "root"
        enter = self._enter()
        become = become or bool(enter)
        password = self.sudo_password() if become and not is_root else None
        argv = agent_argv(run, user, become=become, password=password is not None, enter=enter)
        try:
            channel = LocalChannel(argv, environment(in_namespaces=bool(enter)))
        except OSError as error:
            raise Unreachable(
                f"{argv[0]} cannot be started on this machine: {error.strerror}",
                where=self.node,
                hint="connection: local needs python3, and sudo unless you are root",
            ) from None
        return Session(
            self.node,
            channel,
            as_root=become or is_root,
            root=self.root,
            password=password,
            explain=partial(why_no_agent, self.node, user),
        )

    def _enter(self) -> list[str]:
        """Return what runs an agent in the node's namespaces; nothing where it has none."""
        if self.namespaces_of is None:
            return []
        return namespaces.enter(namespaces.leader(self.node, self.namespaces_of))

    def files_root(self) -> str:
        """Return where the node's file system begins on this machine."""
        if self.namespaces_of is None:
            return self.root
        return f"/proc/{namespaces.leader(self.node, self.namespaces_of)}/root"

    def host_key(self) -> bytes | None:
        return None

    def close(self) -> None:
        """Nothing is open but the agents, which their sessions end."""
