"""How a node is reached: ssh_config, jump hosts, keys, a password for a first contact, host keys.

fabric accepts any host key unless told otherwise, paramiko never sets TCP_NODELAY (a factor of 4 at
5 ms) and prefers slow ciphers, keepalives do not find a dead peer: all that is put right here.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.engine.known_hosts import USER_FILE, host_name, known
from spark_cluster.errors import Unreachable

if TYPE_CHECKING:
    import fabric
    import paramiko

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
DEAD_PEER_MS = 15_000
"""TCP_USER_TIMEOUT, milliseconds: sent data unanswered for so long ends the connection."""

# Otherwise Python prints paramiko's own words for what is an error of ours, or none (a port that
# does not listen yet).
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Target:
    """Where and how to reach one node.

    Args:
        name: as in the inventory; for messages.
        host: address, name, or alias of the user's ssh_config.
        user, port: None leaves it to ssh_config (and then the local user, 22).
        identity_file: a private key to offer first.
        known_hosts: a file of host keys beside the user's own.
        jump: `[user@]host[:port]` to go through; None leaves it to ssh_config.
        connect_timeout_s: seconds for each of TCP, banner and authentication.
        sudo_password: asked for when it is needed; returns None when there is none.
        login_password: asked for when the node takes no key, for a first contact; it goes to this
            node only, never to a jump host. Returns None when there is none.
    """

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    identity_file: Path | None = None
    known_hosts: Path | None = None
    jump: str | None = None
    connect_timeout_s: float = 10.0
    sudo_password: Callable[[], str | None] = field(default=lambda: None)
    login_password: Callable[[], str | None] = field(default=lambda: None)


def fingerprint(key: paramiko.PKey) -> str:
    """`SHA256:...` as `ssh-keygen -l` prints it."""
    return str(key.fingerprint)


class KeysRefused(Unreachable):
    """The node was reached, but takes none of the keys; a password may do."""


def connect(target: Target) -> fabric.Connection:
    """An open connection to a node.

    Raises:
        Unreachable: with the reason, and what to do about it.
    """
    password = target.login_password()
    if password is not None and target.identity_file is None:
        # All keys of the agent and of ~/.ssh could be more than sshd lets one connection try.
        with contextlib.suppress(KeysRefused):
            return _dialled(target, None)
    return _dialled(target, password)


def _dialled(target: Target, password: str | None) -> fabric.Connection:
    connection = hops_to(target, password)[0]
    dial(connection, target)
    return connection


def dial(connection: fabric.Connection, target: Target) -> None:
    """Open a connection of `hops_to`, and those that it goes through.

    Raises:
        Unreachable: with the reason, and what to do about it.
    """
    last = connection
    while last.gateway and not isinstance(last.gateway, str):
        last = last.gateway
    if not last.gateway:  # the one that opens a real socket
        last.connect_kwargs["sock"] = tcp(last.host, last.port, target)
    try:
        _open(connection, target)
    except BaseException:  # half-open ones count for sshd's MaxStartups
        hang_up(connection)
        raise


def hang_up(connection: fabric.Connection) -> None:
    """Close a connection, open or half-open, and those that it goes through."""
    hop = connection
    while hop and not isinstance(hop, str):
        hop.client.close()
        hop = hop.gateway


def hops_to(target: Target, password: str | None = None) -> list[fabric.Connection]:
    """The connection to a node, not opened, and after it the jump hosts that it goes through.

    With a password the node itself is offered that, after the key that the inventory names.
    """
    import fabric

    config = fabric.Config()
    config.load_ssh_config()
    gateway = _jump(target, config)
    options: dict[str, Any] = {"config": config}
    if gateway is not None:
        options["gateway"] = gateway
    connection = fabric.Connection(
        target.host,
        user=target.user,
        port=target.port,
        connect_kwargs={**_auth(target), **_with(password)},
        connect_timeout=None,
        **options,
    )
    hops = [connection]
    while hops[-1].gateway and not isinstance(hops[-1].gateway, str):
        hops.append(hops[-1].gateway)
    for hop in hops:
        _prepare(hop, target)
    return hops


def _jump(target: Target, config: fabric.Config) -> fabric.Connection | None:
    import fabric

    if target.jump is None:
        return None
    gateway = None
    for hop in target.jump.split(","):
        gateway = fabric.Connection(
            hop.strip(), config=config, gateway=gateway, connect_kwargs=_auth(target)
        )
    return gateway


def _auth(target: Target) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if target.identity_file is not None:
        options["key_filename"] = [str(target.identity_file)]
    return options


def _with(password: str | None) -> dict[str, Any]:
    if password is None:
        return {}
    return {"password": password, "allow_agent": False, "look_for_keys": False}


def _prepare(hop: fabric.Connection, target: Target) -> None:
    """Strict host keys, time-outs and quick ciphers, before anything is opened."""
    import paramiko

    client = hop.client
    name = host_name(hop.host, hop.port)
    for kind, key in known(name, (USER_FILE.expanduser(), target.known_hosts)).items():
        client.get_host_keys().add(name, kind, key)
    client.set_missing_host_key_policy(_strict())

    def transport(sock: Any, **kwargs: Any) -> paramiko.Transport:
        made = paramiko.Transport(sock, **kwargs)
        security = made.get_security_options()
        quick = [c for c in CIPHERS if c in security.ciphers]
        security.ciphers = (*quick, *(c for c in security.ciphers if c not in quick))
        return made

    hop.connect_kwargs.update(
        banner_timeout=target.connect_timeout_s,
        auth_timeout=target.connect_timeout_s,
        channel_timeout=target.connect_timeout_s,
        transport_factory=transport,
    )


def _strict() -> paramiko.MissingHostKeyPolicy:
    import paramiko

    class Strict(paramiko.MissingHostKeyPolicy):
        def missing_host_key(
            self, _client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
        ) -> None:
            raise _UnknownHostKey(hostname, key)

    return Strict()


class _UnknownHostKey(Exception):
    def __init__(self, hostname: str, key: paramiko.PKey) -> None:
        super().__init__(hostname)
        self.key = key


def tcp(host: str, port: int, target: Target) -> socket.socket:
    """A TCP connection that does not wait to send, and notices a dead peer.

    Raises:
        Unreachable: no such name, refused, no answer.
    """
    where = f"{host}:{port}"
    try:
        sock = socket.create_connection((host, port), timeout=target.connect_timeout_s)
    except socket.gaierror:
        raise Unreachable(
            f"no address is known for {host!r}",
            where=target.name,
            hint="check `address` in the inventory, or the host's entry in ~/.ssh/config",
        ) from None
    except ConnectionRefusedError:
        raise Unreachable(
            f"{where} refused the connection",
            where=target.name,
            hint="the machine is up, but no sshd listens there: check the port, and sshd on it",
        ) from None
    except TimeoutError:
        raise Unreachable(
            f"{where} did not answer within {target.connect_timeout_s:g} s",
            where=target.name,
            hint="check that it is on and on this network, and its `address` in the inventory",
        ) from None
    except OSError as error:
        raise Unreachable(
            f"{where}: {(error.strerror or str(error)).lower()}",
            where=target.name,
            hint="check that it is on and on this network, and its `address` in the inventory",
        ) from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
    return sock


def _open(connection: fabric.Connection, target: Target) -> None:
    import paramiko

    try:
        connection.open()
    except _UnknownHostKey as error:
        raise Unreachable(
            f"the host key of {error} is not known: {error.key.get_name()} "
            f"{fingerprint(error.key)}",
            where=target.name,
            hint="compare it with the node's own, then accept it: "
            f"spark-cluster trust --limit {target.name}",
        ) from None
    except paramiko.BadHostKeyException as error:
        raise Unreachable(
            f"THE HOST KEY HAS CHANGED: {fingerprint(error.key)} came, "
            f"{fingerprint(error.expected_key)} is known",
            where=target.name,
            hint="a reinstalled node has a new key; if it was not reinstalled, someone is between. "
            f"When you know why: spark-cluster trust --replace --limit {target.name}",
        ) from None
    except paramiko.PasswordRequiredException:
        raise KeysRefused(
            "the private key has a passphrase",
            where=target.name,
            hint="add it to your agent first: ssh-add " + str(target.identity_file or ""),
        ) from None
    except paramiko.AuthenticationException:
        raise _refused(connection, target) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        # Of a refused key in the old PEM form paramiko keeps only that it tried other forms last.
        if re.fullmatch(r"encountered \w+ key, expected \w+ key", str(error)):
            raise _refused(connection, target) from None
        raise unreachable(target, str(error) or "the connection was cut") from None


def _refused(connection: fabric.Connection, target: Target) -> Unreachable:
    where = f"{connection.user}@{connection.host}:{connection.port}"
    if "password" in connection.connect_kwargs:
        return Unreachable(
            f"{where} does not accept the password",
            where=target.name,
            hint="check `user` in the inventory, and that sshd there lets passwords in",
        )
    return KeysRefused(
        f"{where} accepts none of the offered keys",
        where=target.name,
        hint="check `user` and `identity_file` in the inventory; ssh-copy-id installs a key, "
        "and so does `spark-cluster provision --ask-password`",
    )


def unreachable(target: Target, why: str) -> Unreachable:
    """The error of a connection that failed for a reason of its own."""
    return Unreachable(
        f"SSH failed: {why}",
        where=target.name,
        hint="ssh -v to the node shows more; after several failures sshd itself refuses an "
        "address for some minutes",
    )
