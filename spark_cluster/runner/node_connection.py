"""A connection to a node, over SSH or on the machine itself: its agents, and why one is silent."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spark_cluster.errors import Failed, Refused, Unreachable, naming
from spark_cluster.node.processes import SEARCH_PATH
from spark_cluster.runner import wire
from spark_cluster.runner.wire import SAID_BYTES, SLICE, Channel

if TYPE_CHECKING:
    from spark_cluster.runner.session import Session
    from spark_cluster.runner.ssh import Connection


PROMPT = "spark-cluster-sudo:"
"""What sudo asks with, so that asking twice (a wrong password) is recognised."""


_REFUSALS = (
    (
        r"account expired|account validation failure|password expired|password is expired",
        "the account {user} has expired or is locked, so that sudo does not take it",
        "as root on the node: chage -l {user}, passwd -S {user}",
    ),
    (
        r"try again|incorrect password",
        "sudo does not accept the password of {user}",
        "check `become.password` in the inventory",
    ),
    (
        r"a password is required|a terminal is required|authentication is required",
        "sudo asks for the password of {user}",
        "set `become.password` in the inventory (from env, a file or a prompt)",
    ),
    (
        r"you must have a tty",
        "sudo runs on a terminal only there (`requiretty`)",
        "as root on the node, with visudo: Defaults:{user} !requiretty",
    ),
    (
        r"not in the sudoers|is not allowed to|may not run sudo|afraid i can't do that",
        "{user} may not use sudo there",
        "as root on the node: usermod -aG sudo {user}",
    ),
    (
        r"(?s)\A(?=.*python3).*(not found|no such file|permission denied|unable to execute)",
        "there is no Python 3 on the node",
        "the only thing it needs besides sshd: sudo apt-get install python3",
    ),
    (r"(?s)\A(?=.*sudo).*not found", "there is no sudo on the node", "log in as root"),
)
r"""Known errors of sudo, of sudo-rs and of shells: the pattern of what was printed, in lower case;
message and hint for `user`. A node can say SAID_BYTES: with \A all of it is read once, not from
each place on.
"""


class NodeConnection(ABC):
    """What a run needs of a connection; opened on first use.

    Attributes:
        node: its name, for errors.
        root: where the node's file system begins; "/" but in tests.
    """

    node: str
    root: str = "/"

    @property
    @abstractmethod
    def user(self) -> str:
        """The user on the node whose processes are started. Raises Unreachable."""

    @abstractmethod
    def sudo_password(self) -> str | None:
        """Ask for what sudo may want; None when it wants nothing."""

    @abstractmethod
    def start(self, argv: Sequence[str]) -> Channel:
        """Start a command, an agent's above all, by its argument list. Raises Unreachable."""

    def enter(self) -> list[str]:
        """Return what runs an agent in another place, as only root can; nothing where none does."""
        return []

    def session(self, run: str, *, become: bool = True) -> Session:
        """Start an agent on the node, as root with `become`."""
        from spark_cluster.runner.session import Session

        user, enter = self.user, self.enter()
        is_root = user == "root"
        become = become or bool(enter)
        password = self.sudo_password() if become and not is_root else None
        argv = agent_argv(run, user, become=become, password=password is not None, enter=enter)
        return Session(
            self.node,
            self.start(argv),
            as_root=become or is_root,
            root=self.root,
            password=password,
            explain=partial(why_no_agent, self.node, user),
        )

    def host_key(self) -> bytes | None:
        """Return the host key that the node showed; None where none is shown."""
        return None

    def fabric(self, *, owned: bool) -> Connection:  # noqa: ARG002  (of one over SSH)
        """Return fabric's `Connection` to the node, for playbooks, programs and fabfiles of users.

        Args:
            owned: it is a new one, opened on first use and ended by `close`; otherwise that of the
                run.

        Raises:
            Unreachable: as `user`.
            Refused: the node is not reached over SSH.
        """
        raise Refused(
            "it is on this machine and not reached over SSH: there is no fabric connection",
            where=self.node,
            hint="use its agent: `play.session(node).run([...])`",
        )

    @abstractmethod
    def close(self) -> None:
        """End the connection and all agents on it."""


def agent_argv(
    run: str, user: str, *, become: bool, password: bool, enter: Sequence[str] = ()
) -> list[str]:
    """Return the command line of an agent, through sudo where it has to become root.

    Args:
        user: who starts it.
        password: sudo is given one.
        enter: what runs the agent in another place; only root can.
    """
    if user == "root" or not (become or enter):
        return [*enter, *wire.argv(run)]
    if password:
        return ["sudo", "-S", "-p", PROMPT, "--", *enter, *wire.argv(run, says_ready=True)]
    return ["sudo", "-n", "--", *enter, *wire.argv(run)]


def why_no_agent(node: str, user: str, stderr: str, status: int | None) -> Failed | None:
    """The error of an agent that never spoke.

    Args:
        stderr: its standard error so far.
        status: its exit status; None while it runs.

    Returns:
        None while nothing is known yet.
    """
    low = stderr.lower()
    if stderr.count(PROMPT) > 1:
        low += " try again"
    for pattern, message, hint in _REFUSALS:
        if re.search(pattern, low):
            return Failed(message.format(user=user), where=node, hint=hint.format(user=user))
    if status is None:
        return None
    tail = stderr.strip().splitlines()[-1:] or [f"it ended with status {status}"]
    hint = ""
    if tail[0].startswith("sudo: "):  # in whatever language
        hint = f"`sudo -n true` as {user} there says the same; does it want `become.password`?"
    return Failed(f"the agent did not start: {tail[0]}", where=node, hint=hint)


# The machine itself as a node: agents over pipes (`connection: local`).

KEPT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "USER")
"""Variables of the caller that an agent gets; others may hold secrets."""

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
        what = f"{argv[0]} cannot be started on this machine"
        hint = "connection: local needs python3, and sudo unless you are root"
        with naming(Unreachable, what, where=self.node, hint=hint):
            return LocalChannel(argv, self.environment())

    def environment(self) -> dict[str, str]:
        """Return the environment of an agent.

        The search path is not the caller's, which may begin with a virtual environment: an agent
        finds what it would find over SSH.
        """
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, "PATH": SEARCH_PATH}

    def close(self) -> None:
        """Nothing is open but the agents, which their sessions end."""
