"""Host keys: what a node shows, what is known of it, and writing down what the user accepts."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from spark_cluster.errors import Failed, Unreachable
from spark_cluster.runner import known_hosts_file
from spark_cluster.runner.host_key_check import HostKeyCheck, Judgement
from spark_cluster.runner.known_hosts import HostName, Verdict
from spark_cluster.runner.ssh import dial, hang_up, new_transport
from spark_cluster.runner.ssh_config import lookup
from spark_cluster.runner.ssh_errors import no_answer
from spark_cluster.runner.ssh_limits import NoAnswer
from spark_cluster.runner.ssh_route import Hop, Target, route
from spark_cluster.runner.ssh_socket import socket_to

_KIND = re.compile(r"[A-Za-z0-9@.-]+")
_NAME = re.compile(r"[\w.:%\[\]~-][\w.:%\[\]~+@/=-]*")
"""No space, comma, pattern, negation, marker, comment or hash."""

_VERDICTS = {
    Verdict.KNOWN: "trusted",
    Verdict.NEW: "new",
    Verdict.CHANGED: "changed",
    Verdict.REVOKED: "revoked",
}


@dataclass(frozen=True)
class HostKey:
    """The key that a host shows.

    Attributes:
        node: its name in the inventory.
        host: as known_hosts names it: `host`, `[host]:port` for another port than 22, or its
            HostKeyAlias.
        kind: e.g. `ssh-ed25519`.
        fingerprint: as `ssh-keygen -l` prints it.
        line: for known_hosts.
        verdict: `new`, `trusted`, `changed` or `revoked`.
        known: the fingerprint that is known instead; the same when it is trusted already; None
            when the host is new.
        place: `FILE:LINE` that decided; or empty.
    """

    node: str
    host: str
    kind: str
    fingerprint: str
    line: str
    verdict: str
    known: str | None = None
    place: str = ""


def show(target: Target, hops: Sequence[Hop] | None = None) -> HostKey:
    """Ask a host for its host key; nothing is sent to it that it could misuse.

    Args:
        target: the node.
        hops: the way to the host that is asked, the last of them; all of the node's by default.

    Raises:
        Unreachable: it does not answer, or speaks no SSH.
    """
    hops = hops or route(target)
    check = HostKeyCheck.of(hops[-1].settings, target.known_hosts)
    with contextlib.ExitStack() as stack:
        sock = _socket(hops, target, stack)
        transport = new_transport(sock, check)
        stack.callback(transport.close)
        transport.banner_timeout = target.connect_timeout_s
        try:
            transport.start_client()
            key = transport.get_remote_server_key()
        except NoAnswer as error:
            raise no_answer(target, error, hops[-1]) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(f"SSH failed: {error or 'cut'}", where=target.name) from None
    return _shown(target.name, check.name.name, check.judge(key))


def _shown(node: str, host: str, found: Judgement) -> HostKey:
    return HostKey(
        node,
        host,
        found.kind,
        found.fingerprint,
        known_hosts_line(host, found.kind, found.blob),
        _VERDICTS[found.verdict],
        found.line.fingerprint if found.line is not None else None,
        found.revoked_by or (found.line.place if found.line is not None else ""),
    )


def known_hosts_line(host: str, kind: str, blob: bytes) -> str:
    """A line of known_hosts; the kind may be what a host says of its own key.

    Raises:
        Failed: the name or the kind would make something else of it than one line of one host.
    """
    if not _NAME.fullmatch(host):
        raise Failed(f"found {host!r}, which is not a name for known_hosts: expected one host")
    if not _KIND.fullmatch(kind):
        raise Failed(f"found {kind!r}, which is not a type of host key", where=host)
    return f"{host} {kind} {base64.b64encode(blob).decode()}"


def _socket(
    hops: Sequence[Hop], target: Target, stack: contextlib.ExitStack
) -> socket.socket | paramiko.Channel:
    """A connection to the last host, through the others (whose keys must be known already)."""
    if len(hops) == 1:
        sock = socket_to(hops[0], target)
        stack.callback(sock.close)
        return sock
    gateway = dial(hops[:-1], target)
    stack.callback(hang_up, gateway)
    address, limit = (hops[-1].settings.host, hops[-1].settings.port), target.connect_timeout_s
    try:
        through = gateway.transport.open_channel("direct-tcpip", address, ("", 0), timeout=limit)
    except NoAnswer as error:
        raise no_answer(target, error, hops[-1]) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Unreachable(
            f"the jump host does not reach {hops[-1].place}: {error or 'cut'}", where=target.name
        ) from None
    assert isinstance(through, paramiko.Channel)  # noqa: S101
    return through


def file_of(target: Target) -> Path:
    """The known_hosts file that is written for a node: the inventory's, or the user's own.

    Raises:
        Failed: there is none.
    """
    files = names_and_files(target)[1]
    if not files:
        raise Failed(
            "there is no file for its host key: UserKnownHostsFile is none",
            where=target.name,
            hint="give `known_hosts` in the inventory",
        )
    return files[0]


def names_and_files(target: Target) -> tuple[HostName, list[Path]]:
    """Return a node's name in known_hosts, and its user's files, the one to be written first.

    Those of the whole machine are read only.
    """
    settings = lookup(target.host, target.user, target.port)
    own = [target.known_hosts] if target.known_hosts is not None else []
    check = HostKeyCheck.of(settings, target.known_hosts)
    return check.name, list(dict.fromkeys((*own, *settings.user_known_hosts)))


def write(path: Path, accepted: Iterable[HostKey]) -> None:
    """Add accepted keys; of a host whose key has changed the older ones go.

    Raises:
        Failed: the file cannot be written.
    """
    keys = list(accepted)
    changed = {key.host for key in keys if key.verdict == "changed"}

    def change(lines: list[bytes]) -> list[bytes]:
        kept = known_hosts_file.without(lines, changed)
        added = list(dict.fromkeys(key.line.encode() for key in keys))
        return [*(line for line in kept if line not in added), *added]

    known_hosts_file.update(path, change)
