"""Host keys of nodes and jump hosts: look at them, accept them, and follow their change.

New keys of a node that is known are announced to the laptop before they are in force there. Old and
new ones are both in known_hosts meanwhile, so that the node can be reached whatever is cut in the
middle. The comment of a new key says which one it replaces: whoever comes next goes on.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster.runner.known_hosts import HostKey, PublicKey, of_host, update, without
from spark_cluster.runner.ssh_route import Hop, Target, node_of

_KIND = re.compile(r"[A-Za-z0-9@.-]+")
_NAME = re.compile(r"[\w.:%\[\]~-][\w.:%\[\]~+@/=-]*")
"""No space, comma, pattern, negation, marker, comment or hash."""

_REPLACES = b" spark-cluster:replaces="
"""Begins the comment of a key that was announced: the fingerprint of the one that it replaces."""


def show(hops: Sequence[Hop]) -> HostKey:
    """Ask a host for its host key; nothing is sent to it that it could misuse.

    Args:
        hops: the way to it; the keys of those before it must be known already.

    Raises:
        Unreachable: it does not answer, or speaks no SSH.
    """
    from spark_cluster.runner import ssh

    return ssh.Connection(hops, shared=False).shown_key()


def known_hosts_line(host: str, key: PublicKey) -> bytes:
    """A line of known_hosts; the key's kind may be what a host says of its own key.

    Raises:
        Failed: the name or the kind would make something else of it than one line of one host.
    """
    if not _NAME.fullmatch(host):
        raise Failed(f"found {host!r}, which is not a name for known_hosts: expected one host")
    if not _KIND.fullmatch(key.kind):
        raise Failed(f"found {key.kind!r}, which is not a type of host key", where=host)
    return f"{host} {key.text}".encode()


def file_of(hop: Hop) -> Path:
    """The known_hosts file that is written for a host: the inventory's, or the user's own.

    Raises:
        Failed: there is none.
    """
    if not hop.own_known_hosts:
        raise Failed(
            "there is no file for its host key: UserKnownHostsFile is none",
            where=hop.target.name,
            hint="give `known_hosts` in the inventory",
        )
    return hop.own_known_hosts[0]


def write(path: Path, key: HostKey) -> None:
    """Add an accepted key to a file; of a host whose key has changed the older ones go.

    Raises:
        Failed: the file cannot be written.
    """
    added = known_hosts_line(key.host, key)

    def change(lines: list[bytes]) -> list[bytes]:
        kept: Iterable[bytes | None] = lines
        if key.verdict == "changed":
            of = of_host(lines, key.host)
            kept = (line if its is None else without(line, key.host) for line, its in of)
        return [*(line for line in kept if line not in (None, added)), added]

    update(path, change)


def announce(target: Target, keys: Iterable[str], current: Iterable[str]) -> tuple[Path, list[str]]:
    """Write host keys that a node is about to take into known_hosts, next to those of now.

    Args:
        target: the node; the keys came over a connection verified with one of now.
        keys: the new ones, `KIND BASE64`.
        current: those of now.

    Returns:
        The file, and the new keys as `KIND FINGERPRINT`.

    Raises:
        Failed: the file cannot be written.
    """
    node = node_of(target)
    old = {key.kind: _REPLACES + key.fingerprint.encode() for key in map(_key, current)}
    new = list(map(_key, keys))
    added = {known_hosts_line(node.known_as, key): old.get(key.kind, b"") for key in new}

    def change(lines: list[bytes]) -> list[bytes]:
        kept = [line for line in lines if not line.startswith(tuple(added))]
        return [*kept, *(line + comment for line, comment in added.items())]

    path = file_of(node)
    update(path, change)
    return path, [f"{key.kind} {key.fingerprint}" for key in new]


def is_under_way(target: Target) -> bool:
    """Return whether a new key was announced, and the one that it replaces is still there."""
    return bool(_announced(node_of(target)))


def forget_replaced(target: Target, shown: bytes, current: Iterable[str]) -> list[str]:
    """Remove the keys of a node that announced ones have replaced.

    Args:
        target: the node.
        shown: the key that it shows on a connection of now.
        current: its host keys as they are on its disk, `KIND BASE64`.

    Returns:
        The fingerprints of those that went; none while the announced keys are not in force.

    Raises:
        Failed: a file cannot be written.
    """
    node = node_of(target)
    announced, present = _announced(node), set(map(_key, current))
    replaced = {old for key, old in announced.items() if key in present}
    if PublicKey(shown) not in announced or not replaced:
        return []

    def settled(line: bytes, key: PublicKey | None) -> bytes | None:
        if key is not None and key.fingerprint in replaced:
            return without(line, node.known_as)
        return line.partition(_REPLACES)[0] if key and _replaced_by(line) in replaced else line

    def change(lines: list[bytes]) -> list[bytes]:
        found = (settled(line, key) for line, key in of_host(lines, node.known_as))
        return [line for line in found if line is not None]

    for path in filter(Path.is_file, node.own_known_hosts):
        update(path, change)
    return sorted(replaced)


def _announced(node: Hop) -> dict[PublicKey, str]:
    """Return each announced key with the fingerprint of the one that it replaces."""
    found = {}
    for path in filter(Path.is_file, node.own_known_hosts):
        for line, key in of_host(path.read_bytes().split(b"\n"), node.known_as):
            if key is not None and (old := _replaced_by(line)):
                found[key] = old
    return found


def _replaced_by(line: bytes) -> str:
    """Return the fingerprint of the key that a line's key replaces; empty where it is not said."""
    return line.partition(_REPLACES)[2].decode(errors="replace").strip()


def _key(text: str) -> PublicKey:
    return PublicKey(base64.b64decode(text.split()[1]))
