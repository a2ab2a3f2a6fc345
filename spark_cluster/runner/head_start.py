"""Connecting to nodes while the program is still being imported and the inventory checked.

Importing what checks an inventory takes as long as the network takes to log in. So the connections
begin as soon as the addresses can be read; nothing is asked over them before the checks are done.
One is used for exactly the target that it was begun for, or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.parallel import start
from spark_cluster.runner.ssh_route import Target
from spark_cluster.runner.transport import SshConnection

SWITCH_S = 0.0002
"""Seconds that an import may keep the thread of a handshake waiting."""


@dataclass(frozen=True)
class Agent:
    """The agent that a connection is for.

    Args:
        run: the label of its process.
        become: it is started as root, without a password for sudo.
    """

    run: str
    become: bool


_begun: dict[Target, tuple[SshConnection, Future[SparkClusterError | None]]] = {}


def begin(targets: Iterable[Target], agent: Agent | None = None) -> None:
    """Begin to connect to nodes, a thread each; `connection` hands the connections out.

    Args:
        agent: started there already; None only logs in.
    """
    _begun.clear()
    for target in targets:
        made = SshConnection(target)
        _begun[target] = made, start(partial(_connect, made, agent))
    if _begun:
        load()
        sys.setswitchinterval(SWITCH_S)  # this process does one thing only


def _connect(connection: SshConnection, agent: Agent | None) -> None:
    if agent is None:
        connection.open()
    else:
        connection.prepare(agent.run, become=agent.become)


def load() -> None:
    """Import the SSH library while threads look up routes and open sockets.

    In the caller's thread: those of the handshakes would share the interpreter with what the
    caller imports next, and the first packet would leave later.
    """
    from spark_cluster.runner import ssh  # noqa: F401


def connection(target: Target) -> SshConnection:
    """Return the connection to a target that was begun, or one that is not opened.

    Raises:
        SparkClusterError: the one that was begun failed.
    """
    begun = _begun.pop(target, None)
    if begun is None:
        return SshConnection(target)
    found, opened = begun
    error = opened.result()
    if error is not None:
        found.close()
        raise error
    found.target = target  # with what asks for its passwords
    return found
