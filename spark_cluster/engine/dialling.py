"""Connecting to a node: sockets, jump hosts, keys, a password for a first contact, host keys.

fabric accepts any host key unless told otherwise, paramiko never sets TCP_NODELAY (a factor of 4 at
5 ms) and prefers slow ciphers, keepalives do not find a dead peer: all that is put right here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_cluster.engine import host_key_errors
from spark_cluster.engine.ssh_route import Hop, Target, route
from spark_cluster.errors import Unreachable

if TYPE_CHECKING:
    import fabric
    import paramiko

    from spark_cluster.engine.host_key_check import HostKeyCheck
    from spark_cluster.engine.ssh_limits import NoAnswer

__all__ = ["CIPHERS", "Target", "connect", "dial", "hang_up", "socket_to", "unreachable"]

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
DEAD_PEER_MS = 15_000
"""TCP_USER_TIMEOUT, milliseconds: sent data unanswered for so long ends the connection."""
PROXY_GRACE_S = 2.0
"""Seconds that a ProxyCommand has to end in when its connection is closed."""

# Otherwise Python prints paramiko's own words for what is an error of ours, or none (a port that
# does not listen yet).
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class KeysRefused(Unreachable):
    """The node was reached, but takes none of the keys; a password may do."""


def connect(target: Target) -> fabric.Connection:
    """An open connection to a node.

    Raises:
        Unreachable: with the reason, and what to do about it.
        InvalidFile: ssh_config cannot be read.
        Failed: a file of host keys cannot be read.
    """
    hops = route(target)
    password = target.login_password()
    if password is not None and target.identity_file is None:
        # All keys of the agent and of ~/.ssh could be more than sshd lets one connection try.
        with contextlib.suppress(KeysRefused):
            return dial(hops, target)
    return dial(hops, target, password)


def dial(hops: Sequence[Hop], target: Target, password: str | None = None) -> fabric.Connection:
    """An open connection to the last of some hosts, through those before it.

    With a password the node itself is offered that, after the key that the inventory names.

    Raises:
        Unreachable: with the reason, and what to do about it.
    """
    sock = socket_to(hops[0], target)
    connection = None
    try:
        for hop in hops:
            connection = _connection(hop, target, connection, password if hop.is_node else None)
            if hop is hops[0]:
                connection.connect_kwargs["sock"] = sock
            _open(connection, hop, target)
    except BaseException:  # half-open ones count for sshd's MaxStartups
        hang_up(connection)
        sock.close()
        raise
    assert connection is not None  # noqa: S101  (a route has at least one host)
    return connection


def hang_up(connection: fabric.Connection | None) -> None:
    """Close a connection, open or half-open, and those that it goes through."""
    hop = connection
    while hop is not None:
        hop.client.close()
        hop = hop.gateway


def _connection(
    hop: Hop, target: Target, gateway: fabric.Connection | None, password: str | None
) -> fabric.Connection:
    """A connection that is not open: strict host keys, time-outs and quick ciphers."""
    import fabric
    import paramiko

    from spark_cluster.engine.host_key_check import HostKeyCheck, StrictPolicy

    settings = hop.settings
    # An explicit and empty configuration: the files have been read, by `route`.
    made = fabric.Connection(
        settings.host,
        user=settings.user,
        port=settings.port,
        gateway=gateway,
        config=fabric.Config(ssh_config=paramiko.SSHConfig()),
        connect_kwargs={**_auth(hop), **_with(password)},
        connect_timeout=None,
    )
    check = HostKeyCheck.of(settings, target.known_hosts)
    made.client.set_missing_host_key_policy(StrictPolicy(check))

    def transport(sock: Any, **options: Any) -> paramiko.Transport:
        return new_transport(sock, check, **options)

    made.connect_kwargs.update(
        banner_timeout=target.connect_timeout_s,
        auth_timeout=target.connect_timeout_s,
        channel_timeout=target.connect_timeout_s,
        transport_factory=transport,
    )
    return made


def _auth(hop: Hop) -> dict[str, Any]:
    first = [hop.identity_file] if hop.identity_file is not None else []
    files = [str(path) for path in (*first, *hop.settings.identity_files)]
    return {"key_filename": files} if files else {}


def _with(password: str | None) -> dict[str, Any]:
    if password is None:
        return {}
    return {"password": password, "allow_agent": False, "look_for_keys": False}


def new_transport(sock: Any, check: HostKeyCheck, **options: Any) -> paramiko.Transport:
    """A transport with quick ciphers that asks for the host key that is known."""
    from spark_cluster.engine.host_key_check import Transport

    made = Transport(sock, check=check, **options)
    security = made.get_security_options()
    quick = [c for c in CIPHERS if c in security.ciphers]
    security.ciphers = (*quick, *(c for c in security.ciphers if c not in quick))
    return made


# -- sockets ---------------------------------------------------------------------------------------


def socket_to(hop: Hop, target: Target) -> socket.socket:
    """A socket to the first host of a route: TCP, or the user's ProxyCommand.

    Raises:
        Unreachable: no such name, refused, no answer.
    """
    if hop.settings.proxy_command:
        return _proxy(hop.settings.proxy_command)
    return tcp(hop.settings.host, hop.settings.port, target)


def _proxy(command: str) -> socket.socket:
    """The other end of a program; it ends when the socket is closed.

    paramiko's own ProxyCommand waits up to 0.1 s for each packet, spins when the program has
    ended, and runs no shell, as ssh does.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        end = theirs.fileno()
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"], stdin=end, stdout=end, start_new_session=True
        )
    return _ProxySocket(ours, process)


class _ProxySocket(socket.socket):
    """A socket to a program that is ended, as ssh ends it, when the socket is closed."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        super().__init__(fileno=ours.detach())
        self._process = process
        threading.Thread(target=process.wait, daemon=True).start()

    def close(self) -> None:
        super().close()
        for ends, wait_s in ((signal.SIGHUP, PROXY_GRACE_S), (signal.SIGKILL, 0.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self._process.poll() is None:
                    os.killpg(self._process.pid, ends)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
                return


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


# -- opening, and what is said when it does not work -----------------------------------------------


def _open(connection: fabric.Connection, hop: Hop, target: Target) -> None:
    import paramiko

    from spark_cluster.engine.host_key_check import HostKeyRefused
    from spark_cluster.engine.ssh_limits import NoAnswer

    try:
        connection.open()
    except HostKeyRefused as error:
        raise host_key_errors.refused(error.judgement, hop, target) from None
    except NoAnswer as error:
        raise no_answer(target, error, hop) from None
    except paramiko.ChannelException as error:
        raise Unreachable(
            f"the jump host does not reach {hop.place}: {error.text}",
            where=target.name,
            hint="check on the jump host that it can: its sshd may forbid AllowTcpForwarding",
        ) from None
    except paramiko.PasswordRequiredException:
        raise KeysRefused(
            "the private key has a passphrase",
            where=target.name,
            hint="add it to your agent first: ssh-add " + str(hop.identity_file or ""),
        ) from None
    except paramiko.AuthenticationException:
        raise _refused(connection, hop, target) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        # Of a refused key in the old PEM form paramiko keeps only that it tried other forms last.
        if re.fullmatch(r"encountered \w+ key, expected \w+ key", str(error)):
            raise _refused(connection, hop, target) from None
        raise unreachable(target, str(error) or "the connection was cut") from None


def _refused(connection: fabric.Connection, hop: Hop, target: Target) -> Unreachable:
    where = f"{connection.user}@{hop.place}"
    if "password" in connection.connect_kwargs:
        return Unreachable(
            f"{where} does not accept the password",
            where=target.name,
            hint="check `user` in the inventory, and that sshd there lets passwords in",
        )
    if not hop.is_node:
        return Unreachable(
            f"the jump host {where} accepts none of the offered keys",
            where=target.name,
            hint="check its user and key in `jump` of the inventory, or in ~/.ssh/config",
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


def no_answer(target: Target, error: NoAnswer, hop: Hop | None = None) -> Unreachable:
    """The error of a server that was silent for too long.

    Args:
        hop: the host to which a connection is being made; None when it is there already.
    """
    if hop is not None and error.of_gateway:
        return Unreachable(
            f"the jump host did not reach {hop.place} within {target.connect_timeout_s:g} s",
            where=target.name,
            hint="check that it is on, and on the jump host that it answers from there",
        )
    where = "" if hop is None or hop.is_node else f" of the jump host {hop.place}"
    return Unreachable(
        f"sshd{where} did not {error.step} within {target.connect_timeout_s:g} s",
        where=target.name,
        hint="the network reaches it, so it hangs or is overloaded: look at its console for want "
        "of memory or a full process table; a reboot may be all that helps",
    )
