"""Host keys of nodes and jump hosts: look at them, and accept them into a known_hosts file.

A file is changed as bytes, line by line: comments, order, damaged lines and what is not UTF-8 stay.
`ssh-keygen -R` would remove whole lines, with their other names and patterns.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster.runner.known_hosts import HostKey, PublicKey, of_host
from spark_cluster.runner.ssh_route import Hop

_KIND = re.compile(r"[A-Za-z0-9@.-]+")
_NAME = re.compile(r"[\w.:%\[\]~-][\w.:%\[\]~+@/=-]*")
"""No space, comma, pattern, negation, marker, comment or hash."""

TRIES = 10
"""Of changing a file that other programs change meanwhile."""

Change = Callable[[list[bytes]], list[bytes]]

_one_at_a_time = threading.Lock()


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


# -- changing a file -------------------------------------------------------------------------------


def without(line: bytes, name: str) -> bytes | None:
    """Return a line that gives a host its key without that host; None when it names no other.

    Only the name itself and its hash go: a pattern such as `*.lan` speaks of others too.
    """
    names = line.split(None, 1)[0]
    gone = name.lower().encode("utf-8", "surrogateescape")
    kept = [one for one in names.split(b",") if one.lower() != gone and not one.startswith(b"|")]
    if all(one.startswith(b"!") for one in kept):
        return None
    return line.replace(names, b",".join(kept), 1)


def update(path: Path, change: Change) -> None:
    """Replace a file by what `change` makes of its lines, in one step.

    It keeps its mode and owner (a new one is for the user only), and a link stays one. What
    another program, such as ssh, appends meanwhile is not lost: then it is all done again.

    Raises:
        Failed: it cannot be read or written, or is no regular file.
    """
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _one_at_a_time:
            is_done = any(_replaced(path, change) for _ in range(TRIES))
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = getattr(error, "strerror", None) or str(error)
        raise Failed(f"cannot be written: {why}", where=str(path)) from None
    if not is_done:
        raise Failed("other programs keep on changing it", where=str(path), hint="try again")


def _replaced(path: Path, change: Change) -> bool:
    """Replace the file; return False when the file was changed meanwhile."""
    found = path.stat() if path.exists() else None
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise Failed(
            "no host key can be written there: it is not a regular file",
            where=str(path),
            hint="give `known_hosts` in the inventory, or another UserKnownHostsFile in ssh_config",
        )
    old = path.read_bytes() if found else b""
    lines = change(old.removesuffix(b"\n").split(b"\n") if old else [])
    new = b"".join(line + b"\n" for line in lines)
    if new == old:
        return True
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(new)
            out.flush()
            if found is not None:
                if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, found.st_uid, found.st_gid)
                os.fchmod(handle, stat.S_IMODE(found.st_mode))
            os.fsync(handle)
        if (path.read_bytes() if path.exists() else b"") != old:
            return False
        staged.replace(path)
        return True
    finally:
        staged.unlink(missing_ok=True)
