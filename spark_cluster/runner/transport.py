"""An SSH connection to one node, opened on first use, and the agents on it.

The socket to the first host of the way is opened here, while fabric is still being imported; what
logs in over it is runner/ssh.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_cluster.runner.node_connection import NodeConnection, agent_argv
from spark_cluster.runner.ssh_route import Target, route, socket_to

if TYPE_CHECKING:
    from spark_cluster.runner.ssh import Connection, SshChannel


class SshConnection(NodeConnection):
    """An SSH connection to one node; opened on first use, safe to use from several threads."""

    def __init__(self, target: Target) -> None:
        self.target, self.node = target, target.name
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

    def fabric(self, *, owned: bool) -> Connection:
        if not owned:
            return self.open()
        from spark_cluster.runner import ssh

        return ssh.Connection(route(self.target), shared=False)

    def channel(self, argv: Sequence[str]) -> SshChannel:
        """Start a command (an argument list; it is quoted for the remote shell)."""
        return self.open().channel(argv)

    def prepare(self, run: str, *, become: bool) -> None:
        """Start an agent's process before there is anything to be sent to it.

        `session` with the same arguments uses it, unless sudo is to be given a password.
        """
        argv = agent_argv(run, self.user, become=become, password=False)
        self._prepared[tuple(argv)] = self.channel(argv)

    def start(self, argv: Sequence[str]) -> SshChannel:
        return self._prepared.pop(tuple(argv), None) or self.channel(argv)

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
