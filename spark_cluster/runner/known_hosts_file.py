"""Changes a known_hosts file and nothing in it that is another host's.

It is handled as bytes, line by line: comments, order, damaged lines and what is not UTF-8 stay.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster.runner import known_hosts

Change = Callable[[list[bytes]], list[bytes]]

TRIES = 10
_one_at_a_time = threading.Lock()


def update(path: Path, change: Change) -> None:
    """Replace the file by what `change` makes of its lines, in one step.

    It keeps its mode and owner (a new one is for the user only), and a link stays one. What
    another program, such as ssh, appends meanwhile is not lost: then it is all done again.

    Raises:
        Failed: it cannot be read or written, or is no regular file.
    """
    try:
        path = path.resolve()
        with _one_at_a_time:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for _ in range(TRIES):
                if _replaced(path, change):
                    return
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Failed(f"cannot be written: {why}", where=str(path)) from None
    raise Failed("other programs keep on changing it", where=str(path), hint="try again")


def _replaced(path: Path, change: Change) -> bool:
    """Replace the file; return False when the file was changed meanwhile."""
    old, found = _content(path)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise Failed(
            "no host key can be written there: it is not a regular file",
            where=str(path),
            hint="give `known_hosts` in the inventory, or another UserKnownHostsFile in ssh_config",
        )
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
                    os.fchown(out.fileno(), found.st_uid, found.st_gid)
                os.fchmod(out.fileno(), stat.S_IMODE(found.st_mode))
            os.fsync(out.fileno())
        if _content(path)[0] != old:
            return False
        staged.replace(path)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()


def _content(path: Path) -> tuple[bytes, os.stat_result | None]:
    try:
        found = path.stat()
        return (path.read_bytes() if stat.S_ISREG(found.st_mode) else b""), found
    except FileNotFoundError:
        return b"", None


def without(lines: list[bytes], names: Iterable[str]) -> list[bytes]:
    """Return the lines of a file without some names, and without those that name no other host.

    Only the names themselves and their hashes go: a pattern such as `*.lan` speaks of others too.
    Lines with a marker are left alone.

    Raises:
        Failed: there is no ssh-keygen here.
    """
    gone = [name.lower() for name in names]
    content = b"\n".join(lines)
    numbers = {
        n
        for name in gone
        for n, marker in known_hosts.numbers_of(name, content).items()
        if not marker
    }
    found = [
        _without(line, gone) if n in numbers else line for n, line in enumerate(lines, start=1)
    ]
    return [line for line in found if line is not None]


def _without(line: bytes, gone: list[str]) -> bytes | None:
    """Return a line without some names; None when it names no other host."""
    names = line.split(None, 1)[0]
    if known_hosts.key_in(line) is None:
        return line
    if names.startswith(b"|"):
        return None
    kept = [name for name in names.split(b",") if _text(name) not in gone]
    if len(kept) == names.count(b",") + 1:
        return line
    if all(name.startswith(b"!") for name in kept):
        return None
    return line.replace(names, b",".join(kept), 1)


def comment_of(line: bytes) -> str:
    """Return what stands after the key of a plain line."""
    words = line.split(None, 3)
    return words[3].decode(errors="replace").strip() if len(words) > 3 else ""


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape").lower()
