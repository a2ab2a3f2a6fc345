"""Writes that survive a power cut: synced files and folders, lists to which lines are added."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    staged = path.with_name(f".{path.name}.new")
    with _lock, naming(path):
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "wb") as out:
            os.fchmod(handle, mode)
            out.write(data)
            out.flush()
            os.fsync(handle)
        staged.replace(path)
        sync_folder(path.parent)


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
