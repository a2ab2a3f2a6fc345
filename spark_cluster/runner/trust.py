"""Host keys of nodes and jump hosts: look at them, and accept them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster.runner.known_hosts import HostKey, PublicKey, of_host, update, without
from spark_cluster.runner.ssh_route import Hop

_KIND = re.compile(r"[A-Za-z0-9@.-]+")
_NAME = re.compile(r"[\w.:%\[\]~-][\w.:%\[\]~+@/=-]*")
"""No space, comma, pattern, negation, marker, comment or hash."""


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
