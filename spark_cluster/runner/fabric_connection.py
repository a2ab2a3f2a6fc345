"""fabric's `Connection` to a node, for playbooks, programs and fabfiles of users.

It uses a connection that `runner/ssh.py` has made, with the host keys of every hop
verified; fabric itself would accept any key of a host that it does not know (`AutoAddPolicy`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import fabric
from paramiko import RejectPolicy, SSHConfig

from spark_cluster.errors import Refused
from spark_cluster.runner.node_connection import NodeConnection
from spark_cluster.runner.transport import SshConnection


class Connection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A fabric connection to a node: `run`, `sudo`, `get`, `put`, `shell` and the others.

    `sudo` gives the password that the inventory names, or that was asked for. Standard input is not
    passed on, unless `in_stream=` says so. The files that fabric reads, such as ~/.fabric.yaml,
    count; ssh_config is read by ssh itself, as for every connection.

    Args:
        ssh: the connection of the node; it is opened when it is first needed.
        owned: `close` ends it; otherwise it belongs to a run, and stays.
    """

    _ssh: SshConnection | None = None
    _owned = False

    def __init__(self, ssh: SshConnection, *, owned: bool) -> None:
        target = ssh.target
        # The end of a standard input that is no terminal would end that of sudo before its answer.
        config = fabric.Config(overrides={"run": {"in_stream": False}}, ssh_config=SSHConfig())
        # No gateway: `ssh` goes through the jump hosts itself.
        super().__init__(target.host, target.user, target.port, config, gateway=False)
        self.client.set_missing_host_key_policy(RejectPolicy())
        self._set(_ssh=ssh, _owned=owned, original_host=target.name)

    def open(self) -> None:
        """Connect, if that is not done yet.

        Raises:
            Unreachable: with the reason, and what to do about it.
        """
        if self.is_connected:
            return
        login = self._verified.open()
        self._set(client=login.client, transport=login.transport, user=login.user)

    def sudo(self, command: str, **options: Any) -> Any:
        """Run a command as root, or as `user`, through sudo; otherwise as in fabric."""
        self.open()  # it tells the user
        password = None if self.user == "root" else self._verified.target.sudo_password()
        if password is not None:
            options.setdefault("password", password)
        return super().sudo(command, **options)

    def close(self) -> None:
        """End the connection, unless it belongs to a run."""
        if self._owned:
            super().close()
            self._verified.close()
        elif self._sftp is not None:
            self._sftp.close()
            self._set(_sftp=None)

    @property
    def _verified(self) -> SshConnection:
        assert self._ssh is not None  # noqa: S101  (set by __init__)
        return self._ssh


def over(connection: NodeConnection, node: str, *, owned: bool) -> Connection:
    """Return fabric's `Connection` over one of ours; with `owned` closing it closes that, too.

    Raises:
        Refused: the node is not reached over SSH.
    """
    if not isinstance(connection, SshConnection):
        raise Refused(
            "it is on this machine and not reached over SSH: there is no fabric connection",
            where=node,
            hint="use its agent: `play.session(node).run([...])`",
        )
    return Connection(connection, owned=owned)


def group(connections: Iterable[Connection]) -> fabric.ThreadingGroup:
    """Return a group that does what it is told on all nodes at once."""
    return fabric.ThreadingGroup.from_connections(connections)
