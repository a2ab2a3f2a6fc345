"""Connecting to a node: jump hosts, keys, a password for a first contact, host keys.

paramiko looks up host keys in its own way, never sets TCP_NODELAY (a factor of 4 at 5 ms), prefers
slow ciphers, and its keepalives do not find a dead peer: all that is put right here.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import Unreachable
from spark_cluster.runner import host_key_errors
from spark_cluster.runner.ssh_route import Hop, Target, route
from spark_cluster.runner.ssh_socket import socket_to

if TYPE_CHECKING:
    import paramiko

    from spark_cluster.runner.host_key_check import HostKeyCheck
    from spark_cluster.runner.ssh_limits import NoAnswer

__all__ = ["CIPHERS", "SshLogin", "Target", "connect", "dial", "hang_up", "unreachable"]

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")

# Otherwise Python prints paramiko's own words for what is an error of ours, or none (a port that
# does not listen yet).
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class KeysRefused(Unreachable):
    """The node was reached, but takes none of the keys; a password may do."""


@dataclass(frozen=True)
class SshLogin:
    """A user logged in on a host.

    Attributes:
        user: the user there.
        client: paramiko's, connected.
        gateway: the jump host that it goes through.
    """

    user: str
    client: paramiko.SSHClient
    gateway: SshLogin | None = None

    @property
    def transport(self) -> paramiko.Transport:
        """The transport on which channels are opened."""
        transport = self.client.get_transport()
        if transport is None:  # closed; what is done with it would raise the same
            raise EOFError
        return transport


def connect(target: Target) -> SshLogin:
    """Log in to a node.

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


def dial(hops: Sequence[Hop], target: Target, password: str | None = None) -> SshLogin:
    """Log in to the last of some hosts, through those before it.

    With a password the node itself is offered that, after the key that the inventory names.

    Raises:
        Unreachable: with the reason, and what to do about it.
    """
    login = None
    sock = socket_to(hops[0], target)
    try:
        for hop in hops:
            through = sock if login is None else _through(login, hop, target)
            login = _log_in(hop, target, through, login, password if hop.is_node else None)
    except BaseException:  # half-open ones count for sshd's MaxStartups
        hang_up(login)
        sock.close()
        raise
    assert login is not None  # noqa: S101  (a route has at least one host)
    return login


def hang_up(login: SshLogin | None) -> None:
    """Close a login, and those that it goes through."""
    while login is not None:
        login.client.close()
        login = login.gateway


def _through(gateway: SshLogin, hop: Hop, target: Target) -> paramiko.Channel:
    """A channel from a jump host to the next host, as `ssh -J` opens it.

    Raises:
        Unreachable: the jump host cannot connect to it.
    """
    with _explained(hop, target, hop.settings.user, None):
        return gateway.transport.open_channel(
            "direct-tcpip",
            (hop.settings.host, hop.settings.port),
            ("", 0),
            timeout=target.connect_timeout_s,
        )


def _log_in(
    hop: Hop,
    target: Target,
    sock: socket.socket | paramiko.Channel,
    gateway: SshLogin | None,
    password: str | None,
) -> SshLogin:
    """Log in over a socket: strict host keys, a limit for each step, quick ciphers first."""
    from spark_cluster.runner.host_key_check import HostKeyCheck, StrictPolicy
    from spark_cluster.runner.ssh_library import paramiko

    settings = hop.settings
    check = HostKeyCheck.of(settings, target.known_hosts)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(StrictPolicy(check))

    def transport(sock: Any, **options: Any) -> paramiko.Transport:
        return new_transport(sock, check, **options)

    try:
        with _explained(hop, target, settings.user, password):
            client.connect(
                settings.host,
                settings.port,
                settings.user,
                sock=sock,
                banner_timeout=target.connect_timeout_s,
                auth_timeout=target.connect_timeout_s,
                channel_timeout=target.connect_timeout_s,
                transport_factory=transport,
                **_keys(hop),
                **_only(password),
            )
    except BaseException:
        client.close()
        raise
    return SshLogin(settings.user, client, gateway)


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
    from spark_cluster.runner.host_key_check import Transport

    made = Transport(sock, check=check, **options)
    security = made.get_security_options()
    quick = [c for c in CIPHERS if c in security.ciphers]
    security.ciphers = (*quick, *(c for c in security.ciphers if c not in quick))
    return made


# -- what is said when it does not work ------------------------------------------------------------


_NOTHING_ACCEPTED = re.compile(
    r"encountered \w+ key, expected \w+ key|No authentication methods available"
)
"""paramiko's words for keys that it could not use, and for a user that has none."""


@contextlib.contextmanager
def _explained(hop: Hop, target: Target, user: str, password: str | None) -> Iterator[None]:
    """Turn what paramiko raises while connecting to a host into an error for people.

    Raises:
        Unreachable: with the reason, and what to do about it.
    """
    from spark_cluster.runner.host_key_check import HostKeyRefused
    from spark_cluster.runner.ssh_library import paramiko
    from spark_cluster.runner.ssh_limits import NoAnswer

    try:
        yield
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
        raise _refused(hop, target, f"{user}@{hop.place}", password) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        # Of a refused key in the old PEM form paramiko keeps only that it tried other forms last.
        # Without any key of the user's it has nothing to try.
        if _NOTHING_ACCEPTED.fullmatch(str(error)):
            raise _refused(hop, target, f"{user}@{hop.place}", password) from None
        raise unreachable(target, str(error) or "the connection was cut") from None


def _refused(hop: Hop, target: Target, where: str, password: str | None) -> Unreachable:
    if password is not None:
        return Unreachable(
            f"{where} does not accept the password",
            where=target.name,
            hint="check `user` in the inventory, and that sshd there accepts passwords",
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
        hint="ssh -v to the node shows more; after several failures sshd may block "
        "this address for some minutes",
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
