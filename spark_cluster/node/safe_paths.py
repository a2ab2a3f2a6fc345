"""Folders and files opened part by part, for what root does in folders that other users can write.

Between a look at a path and the next call any of its parts can become a link. So a folder is opened
once, and what is in it is named by the open folder: `/proc/self/fd/N/NAME`, which the kernel looks
up in that very folder wherever its name leads by then (proc(5)). A link is followed only if nobody
but root can replace it, as with a `/var/lib` that root has moved to another disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from spark_cluster.node.values import ResourceError

DEEPEST = 32
"""Folders in each other that are walked through, and open at a time."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder that may be somebody else's is opened."""

_BATCH, _BATCHES = 1000, 200_000
_LINKS = 40
"""Links in one path, as in the kernel (path_resolution(7))."""


@contextlib.contextmanager
def closing_handle(handle: int) -> Iterator[int]:
    """Yield the handle of something that is open, and close it after the block."""
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Open a folder; yields a path that stays in it.

    Raises:
        ResourceError: a part of the path is a link that other users can replace.
        OSError: it is missing or not a folder; any error below the path names the real place.
    """
    with closing_handle(opened(path, os.O_PATH | os.O_DIRECTORY)) as handle:
        pinned = f"/proc/self/fd/{handle}"
        try:
            yield Path(pinned)
        except OSError as error:
            if str(error.filename or "").startswith(pinned):
                error.filename = f"{path}{str(error.filename)[len(pinned) :]}"
            raise


@contextlib.contextmanager
def entry(path: Path) -> Iterator[Path]:
    """Open the folder of a path; yields the path of the name in it, where a link may be.

    Raises:
        ResourceError, OSError: as `folder`.
    """
    with folder(path.parent) as pinned:
        yield pinned / path.name


def file(path: Path) -> BinaryIO:
    """Open a regular file for reading; neither a pipe nor a device holds it up.

    Raises:
        ResourceError: there is something else; or as `folder`.
        OSError: it is missing.
    """
    return _regular(opened(path, os.O_RDONLY | os.O_NONBLOCK), path)


def file_in(place: Path) -> BinaryIO:
    """Open a regular file that is not a link, for reading, at a path that `entry` gave.

    Raises:
        ResourceError: there is something else.
        OSError: it is missing, or a link.
    """
    return _regular(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), place)


def own_link(path: Path, uid: int, gid: int) -> dict[str, int]:
    """Give a link an owner, and return the owner; -1 leaves it."""
    with closing_handle(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as handle:
        if stat.S_ISLNK(os.fstat(handle).st_mode):  # the link itself, not where it leads
            os.chown(f"/proc/self/fd/{handle}", uid, gid)
        status = os.fstat(handle)
        return {"uid": status.st_uid, "gid": status.st_gid}


def empty(folder: int) -> None:
    """Remove all in an open folder, however deep it is: no container, and no user, makes it fail.

    Raises:
        OSError: a part cannot be removed; `filename` is its path below the folder.
    """
    _empty(folder, folder, 0)


def _empty(folder: int, top: int, depth: int) -> None:
    """Remove all in a folder. What is too deep to be entered is moved to the top, and so goes with
    one of the next batches: any depth is removed with few open folders."""
    for _ in range(_BATCHES):  # someone may go on to write into it
        with os.scandir(folder) as found:
            batch = list(islice(found, _BATCH))
        if not batch:
            return
        for entry in batch:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
            elif depth == DEEPEST:
                moved = f".{os.urandom(8).hex()}"
                os.rename(entry.name, moved, src_dir_fd=folder, dst_dir_fd=top)
            else:
                inner = os.open(entry.name, FOLDER, dir_fd=folder)
                with closing_handle(inner), naming_below(entry.name):
                    _empty(inner, top, depth + 1)
                os.rmdir(entry.name, dir_fd=folder)


@contextlib.contextmanager
def naming_below(folder: object) -> Iterator[None]:
    """Give an error in a folder the path from there."""
    try:
        yield
    except OSError as error:
        error.filename = f"{folder}/{error.filename}"
        raise


def _regular(handle: int, path: Path) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ResourceError(f"{os.path.realpath(path.parent)}/{path.name} is not a regular file")
    return os.fdopen(handle, "rb")


def opened(path: Path, flags: int) -> int:
    """Open what is at an absolute path, whose last part may be a link, too; returns the handle.

    Raises:
        ResourceError, OSError: as `folder`.
    """
    trail = [os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    names, links = [*reversed(path.parts[1:])], 0
    try:
        while True:
            name = names.pop() if names else "."
            if name == "..":
                _close(trail, max(1, len(trail) - 1))
                continue
            wanted = os.O_PATH | os.O_DIRECTORY if names else flags
            try:
                handle = os.open(name, wanted | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=trail[-1])
            except OSError as error:
                error.filename = _named(trail[-1], name)
                target = _target(trail[-1], name, error)
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
                if target.is_absolute():
                    _close(trail, 1)
                names += [part for part in reversed(target.parts) if part != "/"]
                continue
            if not names:
                return handle
            trail.append(handle)
    finally:
        _close(trail, 0)


def _target(around: int, name: str, error: OSError) -> PurePosixPath:
    """Return where a link leads that may be followed; it is why a name could not be opened.

    Raises:
        ResourceError: other users can replace it.
        OSError: the error itself, where it is not a link.
    """
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        raise error
    link, about = os.stat(name, dir_fd=around, follow_symlinks=False), os.fstat(around)
    if not stat.S_ISLNK(link.st_mode):
        raise error
    trusted = {link.st_uid, about.st_uid} <= {0, os.geteuid()}
    if not trusted or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ResourceError(
            f"{_named(around, name)} is a link that other users than root can replace",
            "a link is followed only if it and its folder belong to root and no one else can write "
            "there: name the real place in its stead, or have root make the link in such a folder",
        ) from None
    return PurePosixPath(os.readlink(name, dir_fd=around))


def _named(folder: int, name: str) -> str:
    return f"{Path(f'/proc/self/fd/{folder}').readlink()}/{name}".replace("//", "/")


def _close(handles: list[int], count: int) -> None:
    """Close all handles but the first `count` of them."""
    while len(handles) > count:
        os.close(handles.pop())
