"""Writes that survive a power cut: synced files and folders, lists to which lines are added.

The names of our temporary files tell them from all others: see `temporary`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_cluster.node import locks, safe_paths
from spark_cluster.node.values import ResourceError

_NAME = re.compile(r"\.(?P<stem>.+)\.spark-cluster-(?P<random>[0-9a-f]{8})(?P<check>[0-9a-f]{8})")
_STEM = 200
"""Bytes of the name that are kept: file systems allow 255 for all of it."""


def temporary_name(name: str) -> str:
    """Return a fresh name for a temporary file that will become `name`."""
    stem, random = _stem(name), os.urandom(4).hex()
    return f".{stem}.spark-cluster-{random}{_check(stem, random)}"


def is_temporary(name: str) -> bool:
    """Return whether a file of this name is one of our temporary files."""
    found = _NAME.fullmatch(name)
    return found is not None and found["check"] == _check(found["stem"], found["random"])


def becomes(name: str, temporary: str) -> bool:
    """Return whether a file is one of our temporary files that was to become `name`."""
    return temporary.startswith(f".{_stem(name)}.spark-cluster-") and is_temporary(temporary)


def _stem(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_STEM])


def _check(stem: str, random: str) -> str:
    text = b"spark-cluster temporary file\0" + os.fsencode(stem) + b"\0" + random.encode()
    return hashlib.sha256(text).hexdigest()[:8]


MOST_STALE = 1000
"""Temporary files that one write removes; in a folder that others write there may be any number."""

_lock = threading.RLock()
"""Several documents can be at work at once, in one process and with the same files of ours."""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of reading or writing the file's name: a write to a full disk has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk: what was made, renamed or removed there."""
    sync(folder, os.O_DIRECTORY)


def sync(path: Path, flags: int = 0) -> None:
    """Have what someone else wrote into a file on the disk, or the names in a folder.

    Args:
        flags: of open(2), in addition to reading.
    """
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder and those above it, each one synced into the one that it is in."""
    if folder.is_dir():
        return
    make_folder(folder.parent, 0o755)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a small file of our own: after a power cut it is the old one or the new one, whole."""
    with _lock, naming(path):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_at(folder, path.name, data, mode)
        finally:
            os.close(folder)


def write_at(folder: int, name: str, data: bytes, mode: int) -> None:
    """Do so in a folder that is open, without following a link; what crashes left of it is removed.

    The new file is locked while it is written, which tells it from one that a crash left.
    """
    _remove_stale(folder, name)
    staged = temporary_name(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(staged, flags, mode, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as out:
            with contextlib.suppress(OSError):  # whoever locks it first may not stop the write
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(handle, mode)
            out.write(data)
            out.flush()
            os.fsync(handle)
            os.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged, dir_fd=folder)
        raise
    os.fsync(folder)


def _remove_stale(folder: int, name: str) -> None:
    with os.scandir(folder) as found:
        stale = [entry.name for entry in found if becomes(name, entry.name)]
    for entry in stale[:MOST_STALE]:
        if not is_being_written(entry, folder):
            with contextlib.suppress(OSError):
                os.unlink(entry, dir_fd=folder)


def is_being_written(path: Path | str, folder: int | None = None) -> bool:
    """Return whether a process is at work with a temporary file (`write_at`).

    Args:
        folder: handle of the folder that `path` is in.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if not stat.S_ISREG(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode):
            return False
        handle = os.open(path, flags, dir_fd=folder)
    except OSError:
        return False
    try:
        return locks.is_held(handle)
    finally:
        os.close(handle)


LARGEST_OBJECT = 64 << 20
"""Bytes of a file that `read_object` reads; the manifest of a large model has some."""


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of our own; empty where it is missing, damaged, too large
    for any of ours, or no regular file: a link is not followed."""
    try:
        with safe_paths.file_in(path) as file:
            data = file.read(LARGEST_OBJECT + 1)
        found = json.loads(data) if len(data) <= LARGEST_OBJECT else {}
    except (OSError, ValueError, RecursionError, ResourceError):
        return {}
    return found if isinstance(found, dict) else {}


def append_line(path: Path, entry: Any) -> None:
    """Add a JSON line, synced; when the disk is full nothing of it stays.

    A line that a crash tore is ended first, so that it costs itself only.
    """
    with _lock:
        new = not path.exists()
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            with naming(path):
                _append(handle, json.dumps(entry, sort_keys=True).encode() + b"\n")
        finally:
            os.close(handle)
        if new:
            sync_folder(path.parent)


def _append(handle: int, line: bytes) -> None:
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def read_lines(path: Path) -> tuple[list[Any], int]:
    """Read the lines of `append_line`, and how many a crash tore; empty without a file."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    found, torn = [], 0
    for line in text.split(b"\n"):
        if not line:
            continue
        try:
            found.append(json.loads(line))
        except ValueError:
            torn += 1
    return found, torn
