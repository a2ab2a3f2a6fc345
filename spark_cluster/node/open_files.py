"""What is done with files that are open already: read, write, copy, and see whose they are."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator

_FICLONE = 0x40049409
"""ioctl that lets two files share their blocks until one is written. Source: linux/fs.h."""
_PIECE = 4 << 20


def is_own(about: os.stat_result) -> bool:
    """Return whether it is a regular file that nobody else can write by its owner or another name:
    it belongs to this process's user (root), and has one name only."""
    return stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1


def pieces(handle: int, size: int, piece: int = _PIECE, at: int = 0) -> Iterator[bytes]:
    """Yield the bytes of an open file from byte `at` to byte `size`, piece by piece."""
    while at < size and (data := os.pread(handle, min(piece, size - at), at)):
        yield data
        at += len(data)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all of it where the file is."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def clone(source: int, target: int) -> bool:
    """Have an empty file share the blocks of another one; False where the disk cannot do that."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True
