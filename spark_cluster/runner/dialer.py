"""How the nodes of an opened inventory are reached: their connections, and passwords.

The socket to the first host of the way is opened here, while fabric is still being imported; what
logs in over it is runner/ssh.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.prompts import Prompts
from spark_cluster.errors import INSTALL_LAB, SparkClusterError, UsageError
from spark_cluster.runner.local_connection import LocalConnection
from spark_cluster.runner.node_connection import NodeConnection
from spark_cluster.runner.parallel import all_of, start
from spark_cluster.runner.ssh_route import Target, route, socket_to
from spark_cluster.runner.tunnel import forward

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.session import Session
    from spark_cluster.runner.ssh import Connection, SshChannel


class SshConnection(NodeConnection):
    """An SSH connection to one node; opened on first use, safe to use from several threads."""

    def __init__(self, target: Target) -> None:
        self.target, self.node = target, target.name
        self._lock = threading.Lock()
        self._login: Connection | None = None

    def open(self) -> Connection:
        """Log in, if that is not done yet.

        Raises:
            Unreachable: with the reason, and what to do about it.
            InvalidFile, Failed: ssh_config or a file of host keys cannot be read.
        """
        with self._lock:
            if self._login is None:
                password = self.target.login_password()
                hops = route(self.target)
                sock = socket_to(hops[0])  # while fabric is being imported
                from spark_cluster.runner import ssh

                login = ssh.Connection(hops, shared=True)
                login.log_in(password, sock)
                self._login = login
            return self._login

    def fabric(self, *, owned: bool) -> Connection:
        if not owned:
            return self.open()
        from spark_cluster.runner import ssh

        return ssh.Connection(route(self.target), shared=False)

    def start(self, argv: Sequence[str]) -> SshChannel:
        return self.open().channel(argv)

    def sudo_password(self) -> str | None:
        return self.target.sudo_password()

    @property
    def user(self) -> str:
        """The user who is logged in."""
        return str(self.open().user)

    def host_key(self) -> bytes | None:
        """Return the host key that the node showed."""
        return bytes(self.open().transport.get_remote_server_key().asbytes())

    def close(self) -> None:
        with self._lock:
            if self._login is not None:
                self._login.hang_up()
                self._login = None


@dataclass(eq=False)
class Dialer:
    """Makes the connections to the nodes of an inventory.

    Args:
        prompts: asks for passwords.
    """

    prompts: Prompts = field(default_factory=Prompts)
    _begun: dict[str, tuple[SshConnection, Future[Any]]] = field(default_factory=dict, init=False)

    @contextlib.contextmanager
    def begun(self, nodes: Iterable[InventoryNode]) -> Iterator[None]:
        """Log in to nodes while it is still being read what they are to do.

        `dial` takes the connections in the block; those that are not taken end after it.
        """
        for node in nodes:
            if not node.is_local:
                made = SshConnection(self.target(node))
                self._begun[node.name] = made, start(made.open)
        from spark_cluster.runner import ssh  # noqa: F401  (here, as in Connections.begin)

        try:
            yield
        finally:
            while self._begun:
                start(self._begun.popitem()[1][0].close)  # one that is being made keeps it waiting

    def target(self, node: InventoryNode) -> Target:
        """Return how the transport reaches a node of the inventory."""
        become, asks = node.become, self.prompts

        def login_password() -> str | None:
            if node.login_password is None:
                return None
            return node.login_password.read(_login_password(node.name), asks.ask)

        def password() -> str | None:
            if become.password is None:
                return login_password()  # a fresh node's user has one for both
            return become.password.read(_sudo_password(node.name), asks.ask)

        return Target(
            name=node.name,
            host=node.address,
            user=node.user,
            port=node.port,
            identity_file=node.identity_file,
            known_hosts=node.known_hosts,
            jump=node.jump,
            connect_timeout_s=node.connect_timeout_s,
            sudo_password=password,
            login_password=login_password,
        )

    def remember_password(self, node: str, password: str) -> None:
        """Answer with it where a terminal would be asked for the node's login or sudo password: a
        fresh node's user has one for both.
        """
        for what in (_login_password(node), _sudo_password(node)):
            self.prompts.remember(what, password)

    def dial(self, node: InventoryNode) -> NodeConnection:
        """Return a connection to a node: over SSH, or on this machine itself.

        Raises:
            SparkClusterError: it was begun, and failed.
        """
        target = self.target(node)
        if (begun := self._begun.pop(node.name, None)) is not None:
            outcome = begun[1].result()
            if isinstance(outcome, SparkClusterError):
                raise outcome
            return begun[0]
        if not node.is_local:
            return SshConnection(target)

        if node.namespaces_of is None:
            return LocalConnection(node.name, target.sudo_password)
        found: NodeConnection = _namespaces().NamespacesConnection(
            node.name, target.sudo_password, namespaces_of=node.namespaces_of
        )
        return found

    @contextlib.contextmanager
    def session(self, node: InventoryNode, label: str, *, become: bool = True) -> Iterator[Session]:
        """Start an agent over a connection of its own; both end with the block.

        Args:
            label: of its process.

        Raises:
            SparkClusterError: the node cannot be reached.
        """
        with (
            contextlib.closing(self.dial(node)) as connection,
            contextlib.closing(connection.session(label, become=become)) as session,
        ):
            yield session

    @contextlib.contextmanager
    def sessions(self, nodes: Sequence[InventoryNode], label: str) -> Iterator[dict[str, Session]]:
        """Start an agent as root on every node, in parallel; they end with the block.

        For a question or two: there are no facts, no lock, no events.

        Raises:
            SparkClusterError: that of the first node that cannot be reached.
        """
        with contextlib.ExitStack() as stack:
            jobs = {
                node.name: partial(stack.enter_context, self.session(node, label)) for node in nodes
            }
            yield all_of(jobs)

    @contextlib.contextmanager
    def forward(self, node: InventoryNode, port: int) -> Iterator[int]:
        """Lead a port of this machine's loopback to one of a node's loopback, during the block.

        Yields:
            The port of this machine.

        Raises:
            Unreachable: there is no way to the node.
            UsageError: this machine has no program `ssh`.
        """
        if node.is_this_machine:
            yield port
        elif node.namespaces_of is not None:
            into = _namespaces().forward_into
            with into(node.name, node.namespaces_of, port) as found:
                yield found
        else:
            with forward(self.target(node), LOOPBACK, port) as found:
                yield found


@cache
def _namespaces() -> Any:
    """Import what reaches nodes that are namespaces, as the lab of GPUs makes them.

    Raises:
        UsageError: the lab, a distribution of its own, is not installed.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group="spark_cluster.connections", name="namespace"):
        return point.load()
    raise UsageError("a node that is a namespace is reached by the lab", hint=INSTALL_LAB)


def _login_password(node: str) -> str:
    return f"the login password of {node}"


def _sudo_password(node: str) -> str:
    return f"the sudo password of {node}"
