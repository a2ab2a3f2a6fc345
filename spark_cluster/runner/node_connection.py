"""A connection to a node, over SSH or on the machine itself, and the agents on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from spark_cluster.runner import payload
from spark_cluster.runner.agent_errors import PROMPT

if TYPE_CHECKING:
    from spark_cluster.runner.session import Session


class NodeConnection(Protocol):
    """What a run needs of a connection; opened on first use."""

    @property
    def user(self) -> str:
        """The user on the node whose processes are started. Raises Unreachable."""

    def session(self, run: str, *, become: bool = True) -> Session:
        """Start an agent on the node, as root with `become`."""

    def host_key(self) -> bytes | None:
        """Return the host key that the node showed; None where none is shown."""

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
