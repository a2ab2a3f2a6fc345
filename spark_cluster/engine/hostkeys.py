"""Host keys: what a node shows, what is known of it, and writing down what the user accepts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.engine import known_hosts
from spark_cluster.engine.dialling import Target, dial, fingerprint, hang_up, hops_to, tcp
from spark_cluster.engine.known_hosts import USER_FILE, host_name
from spark_cluster.errors import Failed, Unreachable

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Shown:
    """The key that a node shows.

    Attributes:
        node: its name in the inventory.
        host: as known_hosts names it: `host`, or `[host]:port` beside port 22.
        kind: e.g. `ssh-ed25519`.
        fingerprint: as `ssh-keygen -l` prints it.
        line: for known_hosts.
        known: the fingerprint that is known instead; the same when it is trusted already; None
            when the host is new.
    """

    node: str
    host: str
    kind: str
    fingerprint: str
    line: str
    known: str | None

    @property
    def verdict(self) -> str:
        """`new`, `trusted` or `changed`."""
        if self.known is None:
            return "new"
        return "trusted" if self.known == self.fingerprint else "changed"


def show(target: Target) -> Shown:
    """Ask a node for its host key; nothing is sent to it that it could misuse.

    Raises:
        Unreachable: it does not answer, or speaks no SSH.
    """
    import paramiko

    with contextlib.ExitStack() as stack:
        host, port, sock = _reach(target, stack)
        transport = paramiko.Transport(sock)
        stack.callback(transport.close)
        transport.banner_timeout = target.connect_timeout_s
        name = host_name(host, port)
        known = known_hosts.known(name, (USER_FILE.expanduser(), target.known_hosts))
        if known:  # what is known of a host decides which of its keys is asked for
            security = transport.get_security_options()
            kinds = [k for k in security.key_types if _kind_of_key(k) in known]
            security.key_types = (*kinds, *(k for k in security.key_types if k not in kinds))
        try:
            transport.start_client(timeout=target.connect_timeout_s)
            key = transport.get_remote_server_key()  # raises when nothing came in time
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(f"SSH failed: {error or 'cut'}", where=target.name) from None
    # Known by a key of another kind is known, too: this one is not to be taken for a new host's.
    old = known.get(key.get_name()) or next(iter(known.values()), None)
    return Shown(
        target.name,
        name,
        key.get_name(),
        fingerprint(key),
        f"{name} {key.get_name()} {key.get_base64()}",
        fingerprint(old) if old is not None else None,
    )


def told(node: str, host: str, port: int, keys: Iterable[str]) -> list[Shown]:
    """Host keys (`TYPE BASE64`) that a node told over a connection verified with another key."""
    name = host_name(host, port)
    found = []
    for key in keys:
        kind, blob = key.split()[:2]
        digest = hashlib.sha256(base64.b64decode(blob)).digest()
        printed = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
        found.append(Shown(node, name, kind, printed, f"{name} {kind} {blob}", None))
    return found


def _kind_of_key(algorithm: str) -> str:
    """An RSA key has one name in known_hosts and others, after the hash, on the wire."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def file_of(target: Target) -> Path:
    """The known_hosts file that is written for a node: the inventory's, or the user's own."""
    return target.known_hosts or USER_FILE.expanduser()


def write(path: Path, accepted: Iterable[Shown]) -> None:
    """Add accepted keys; older plain lines of the same host and kind go. Written beside, renamed.

    Raises:
        Failed: the file cannot be written.
    """
    keys = list(accepted)
    path = path.resolve()  # a link stays one
    replaced = {(key.host, key.kind) for key in keys}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        old = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in old if not _is_of_any(line, replaced)]
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            out.write("".join(f"{line}\n" for line in [*kept, *(key.line for key in keys)]))
        beside.replace(path)
    except OSError as error:
        raise Failed(f"cannot be written: {error.strerror}", where=str(path)) from None


def _is_of_any(line: str, keys: set[tuple[str, str]]) -> bool:
    return any(known_hosts.is_of(line, host) and line.split()[1] == kind for host, kind in keys)


def _reach(target: Target, stack: contextlib.ExitStack) -> tuple[str, int, socket.socket]:
    """Host, port and a connection, through the jump hosts (whose keys must be known already)."""
    connection = hops_to(target)[0]
    host, port = str(connection.host), int(connection.port)
    if connection.gateway:
        if not isinstance(connection.gateway, str):
            dial(connection.gateway, target)
            stack.callback(hang_up, connection.gateway)
        return host, port, connection.open_gateway()
    sock = tcp(host, port, target)
    stack.callback(sock.close)
    return host, port, sock
