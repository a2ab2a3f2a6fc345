"""An SSH connection to one node, opened on first use, and the agents on it.

The socket to the first host of the way is opened here, while fabric is still being imported; what
logs in over it is runner/ssh.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.errors import Refused
from spark_cluster.runner.agent_errors import why_no_agent
from spark_cluster.runner.node_connection import NodeConnection, agent_argv
from spark_cluster.runner.ssh_route import Target, route, socket_to

if TYPE_CHECKING:
    from spark_cluster.runner.session import Session
    from spark_cluster.runner.ssh import Connection, SshChannel


class SshConnection:
    """An SSH connection to one node; opened on first use, safe to use from several threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._login: Connection | None = None
        self._prepared: dict[tuple[str, ...], SshChannel] = {}

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
            self._login._set(target=self.target)  # one begun early knew of no passwords
            return self._login

    def channel(self, argv: Sequence[str]) -> SshChannel:
        """Start a command (an argument list; it is quoted for the remote shell)."""
        return self.open().channel(argv)

    def prepare(self, run: str, *, become: bool) -> None:
        """Start an agent's process before there is anything to be sent to it.

        `session` with the same arguments uses it, unless sudo is to be given a password.
        """
        argv = agent_argv(run, self.user, become=become, password=False)
        self._prepared[tuple(argv)] = self.channel(argv)

    def session(self, run: str, *, become: bool = True) -> Session:
        """Start an agent on the node, as root with `become`."""
        from spark_cluster.runner.session import Session

        user = self.user
        is_root = user == "root"
        password = self.target.sudo_password() if become and not is_root else None
        argv = agent_argv(run, user, become=become, password=password is not None)
        prepared = self._prepared.pop(tuple(argv), None)
        return Session(
            self.target.name,
            self.channel(argv) if prepared is None else prepared,
            as_root=become or is_root,
            password=password,
            explain=partial(why_no_agent, self.target.name, user),
        )

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


def over(connection: NodeConnection, node: str, *, owned: bool) -> Connection:
    """Return fabric's `Connection` to a node, for playbooks, programs and fabfiles of users.

    Args:
        owned: it is a new one, opened on first use and ended by `close`; otherwise that of the run.

    Raises:
        Refused: the node is not reached over SSH.
    """
    if not isinstance(connection, SshConnection):
        raise Refused(
            "it is on this machine and not reached over SSH: there is no fabric connection",
            where=node,
            hint="use its agent: `play.session(node).run([...])`",
        )
    if not owned:
        return connection.open()
    from spark_cluster.runner import ssh

    return ssh.Connection(route(connection.target), shared=False)
