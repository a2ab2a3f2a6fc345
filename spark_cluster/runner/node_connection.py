"""A connection to a node, over SSH or on the machine itself: its agents, and why one is silent."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.errors import Failed, Refused
from spark_cluster.runner import payload
from spark_cluster.runner.channel import Channel

if TYPE_CHECKING:
    from spark_cluster.runner.session import Session
    from spark_cluster.runner.ssh import Connection

PROMPT = "spark-cluster-sudo:"
"""What sudo asks with, so that asking twice (a wrong password) is recognised."""


_REFUSALS = (
    (
        r"try again|incorrect password",
        "sudo does not accept the password of {user}",
        "check `become.password` in the inventory",
    ),
    (
        r"a password is required|a terminal is required",
        "sudo asks for the password of {user}",
        "set `become.password` in the inventory (from env, a file or a prompt)",
    ),
    (
        r"not in the sudoers|is not allowed to|may not run sudo",
        "{user} may not use sudo there",
        "as root on the node: usermod -aG sudo {user}",
    ),
    (
        r"(?s)(?=.*python3).*(not found|no such file|permission denied|unable to execute)",
        "there is no Python 3 on the node",
        "the only thing it needs besides sshd: sudo apt-get install python3",
    ),
    (r"(?s)(?=.*sudo).*not found", "there is no sudo on the node", "log in as root"),
)
"""Known errors: the pattern of what was printed, in lower case; message and hint for `user`."""


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
        return [*enter, *payload.argv(run)]
    if password:
        return ["sudo", "-S", "-p", PROMPT, "--", *enter, *payload.argv(run, says_ready=True)]
    return ["sudo", "-n", "--", *enter, *payload.argv(run)]


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
    return Failed(f"the agent did not start: {tail[0]}", where=node)
