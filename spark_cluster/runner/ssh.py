"""The connection to a node, on fabric: jump hosts, keys, a password for a first contact.

fabric accepts any host key that it does not know, and paramiko below it looks up host keys in its
own way, never sets TCP_NODELAY (a factor of 4 at 5 ms), prefers slow ciphers, and its keepalives do
not find a dead peer: all that is put right here and in what this imports.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import fabric
import paramiko

from spark_cluster.runner.host_key_check import HostKeyCheck, StrictPolicy, Transport
from spark_cluster.runner.ssh_errors import KeysRefused, explained
from spark_cluster.runner.ssh_route import Hop, Target
from spark_cluster.runner.ssh_socket import socket_to

if TYPE_CHECKING:
    import socket

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")

# Otherwise Python prints paramiko's own words for what is an error of ours, or none (a port that
# does not listen yet).
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """fabric's connection to one host of a route, through its gateway, with strict host keys.

    fabric itself would accept any key of a host that it does not know (`AutoAddPolicy`), also of a
    jump host; each host of a route is made here, so that none of them does.

    Args:
        hop: the host.
        target: the node at the end of the route.
        gateway: the connection to the host before it; None for the first.
        password: for a first contact; only it is offered, after the key that the inventory names.
        sock: a socket to the host, where it is open already.
    """

    _route: tuple[Hop, Target, str | None] | None = None

    def __init__(
        self,
        hop: Hop,
        target: Target,
        gateway: Connection | None,
        password: str | None,
        sock: socket.socket | None,
    ) -> None:
        settings = hop.settings
        config = fabric.Config(ssh_config=paramiko.SSHConfig())  # `ssh -G` has read the user's
        super().__init__(
            settings.host, settings.user, settings.port, config, gateway=gateway or False
        )
        self._set(_route=(hop, target, password))
        check = HostKeyCheck.of(settings, target.known_hosts)
        self.client.set_missing_host_key_policy(StrictPolicy(check))
        limit_s = target.connect_timeout_s
        self.connect_kwargs.update(
            banner_timeout=limit_s,
            auth_timeout=limit_s,
            channel_timeout=limit_s,
            transport_factory=partial(new_transport, check=check),
            sock=sock,
            **_keys(hop),
            **_only(password),
        )

    def open(self) -> None:
        """Connect, through the gateway, which is opened first.

        Raises:
            Unreachable: with the reason, and what to do about it.
        """
        if self.is_connected:
            return
        assert self._route is not None  # noqa: S101  (set by __init__)
        hop, target, password = self._route
        if self.gateway:
            self.gateway.open()
        elif self.connect_kwargs["sock"] is None:
            self.connect_kwargs["sock"] = socket_to(hop, target)
        try:
            with explained(hop, target, self.user, password):
                super().open()
        except BaseException:  # half-open ones count for sshd's MaxStartups
            hang_up(self)
            raise


def connect(
    hops: Sequence[Hop], target: Target, password: str | None, sock: socket.socket
) -> Connection:
    """Log in to a node.

    Args:
        hops: the way to it.
        password: for a first contact; None where there is none.
        sock: a socket to the first host.

    Raises:
        Unreachable: with the reason, and what to do about it.
        Failed: a file of host keys cannot be read.
    """
    if password is not None and target.identity_file is None:
        # All keys of the agent and of ~/.ssh could be more than sshd lets one connection try.
        with contextlib.suppress(KeysRefused):
            return dial(hops, target, sock=sock)
        return dial(hops, target, password)
    return dial(hops, target, password, sock)


def dial(
    hops: Sequence[Hop],
    target: Target,
    password: str | None = None,
    sock: socket.socket | None = None,
) -> Connection:
    """Log in to the last of some hosts, through those before it.

    With a password the node itself is offered that, after the key that the inventory names.

    Raises:
        Unreachable: with the reason, and what to do about it.
    """
    made = None
    for hop in hops:
        made = Connection(hop, target, made, password if hop.is_node else None, sock)
        sock = None
    assert made is not None  # noqa: S101  (a route has at least one host)
    made.open()
    return made


def hang_up(connection: Connection | None) -> None:
    """Close a connection, and those that it goes through."""
    while connection:
        connection.close()
        connection.client.close()
        if (sock := connection.connect_kwargs["sock"]) is not None:
            sock.close()
            connection.connect_kwargs["sock"] = None
        connection = connection.gateway


def _keys(hop: Hop) -> dict[str, Any]:
    first = [hop.identity_file] if hop.identity_file is not None else []
    files = [str(path) for path in (*first, *hop.settings.identity_files)]
    return {"key_filename": files} if files else {}


def _only(password: str | None) -> dict[str, Any]:
    if password is None:
        return {}
    return {"password": password, "allow_agent": False, "look_for_keys": False}


def new_transport(sock: Any, check: HostKeyCheck, **options: Any) -> paramiko.Transport:
    """A transport with quick ciphers that asks for the host key that is known."""
    made = Transport(sock, check=check, **options)
    security = made.get_security_options()
    quick = [c for c in CIPHERS if c in security.ciphers]
    security.ciphers = (*quick, *(c for c in security.ciphers if c not in quick))
    return made
