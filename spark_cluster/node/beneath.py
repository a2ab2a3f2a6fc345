"""Files below a folder that others can write, reached by handles and without following a link.

A container or another user may leave a link in place of a folder or a file, a FIFO or a device in
place of a file, and exchange one for the other at any time. So each operation opens folder after
folder from the root on with O_NOFOLLOW, and acts on the last name by the handle of its folder; of
files only regular ones are opened. openat2(2) would do it in one call; Python does not have it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from spark_cluster.node import safe_paths
from spark_cluster.node.durable import temporary_name, write_at
from spark_cluster.node.safe_paths import DEEPEST, FOLDER, closing_handle
from spark_cluster.node.values import ResourceError

MOST_ENTRIES = 200_000
"""Names of one folder, or of one walk, that are looked at."""

_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NotFollowed(OSError):
    """A link, or something else that is neither a folder nor a regular file, and is not used."""

    def __init__(
        self, path: object, what: str = "is a link, or not the folder it should be"
    ) -> None:
        super().__init__(errno.ELOOP, f"{what}, and is not followed; remove it", str(path))


class Entry(NamedTuple):
    """What a walk has found.

    Attributes:
        path: below the folder where the walk began.
        about: of the entry itself, not of what a link leads to.
        target: of a link; empty for anything else.
    """

    path: str
    about: os.stat_result
    target: str


class Folder:
    """A folder, and operations on what is below it.

    Paths are given as whole ones below `root`, or relative to it. All operations raise OSError with
    the whole path: `NotFollowed` where a link or something that is not a regular file is in the
    way, or where a path leads out of the root.

    Args:
        root: may be reached through links that no other user can replace (`safe_paths`).
        owners: user ids; folders and files below the root that belong to others are refused.
    """

    def __init__(self, root: Path, owners: frozenset[int] | None = None) -> None:
        self.root = root
        self.owners = owners

    # -- folders -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def at(self, path: Path | str = "") -> Iterator[int]:
        """Yield the handle of a folder."""
        with closing_handle(self._open_folder(self._parts(path), None)) as handle:
            yield handle

    def make(self, path: Path | str = "", mode: int = 0o755) -> None:
        """Make a folder and those above it, each one synced into the one that it is in."""
        os.close(self._open_folder(self._parts(path), mode))

    def entries(self, path: Path | str = "") -> Iterator[tuple[str, os.stat_result]]:
        """Yield the names in a folder, MOST_ENTRIES at most, with what they are themselves."""
        with self.at(path) as folder:
            for number, entry in enumerate(_scanned(folder)):
                if number == MOST_ENTRIES:
                    raise _too_many(self.root / path, MOST_ENTRIES)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    yield entry.name, entry.stat(follow_symlinks=False)

    def walk(
        self,
        path: Path | str = "",
        most: int = MOST_ENTRIES,
        enters: Callable[[str], bool] = lambda _path: True,
    ) -> Iterator[Entry]:
        """Yield all that is below a folder, without the folders themselves.

        A folder that is deeper than DEEPEST is yielded and not entered; one that `enters` refuses
        by its path is left out.

        Raises:
            OSError: there are more than `most` entries.
        """
        top, waiting, left = self.root / path, [""], most
        while waiting:
            place = waiting.pop()
            gone = (FileNotFoundError, NotFollowed) if place else ()  # or exchanged meanwhile
            with contextlib.suppress(*gone), self.at(top / place) as folder:
                for entry in _scanned(folder):
                    left -= 1
                    if left < 0:
                        raise _too_many(top, most)
                    name = f"{place}/{entry.name}" if place else entry.name
                    with contextlib.suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(about.st_mode) and name.count("/") < DEEPEST:
                            waiting += [name] if enters(name) else []
                            continue
                        link = stat.S_ISLNK(about.st_mode)
                        target = os.readlink(entry.name, dir_fd=folder) if link else ""
                        yield Entry(name, about, target)

    def free(self) -> int:
        """Return the bytes that can still be written where the folder is, or will be."""
        for place in (self.root, *self.root.absolute().parents):
            with (
                contextlib.suppress(FileNotFoundError),
                closing_handle(_open_root(place, None)) as handle,
            ):
                disk = os.fstatvfs(handle)
                return disk.f_bavail * disk.f_frsize
        return 0

    # -- files ---------------------------------------------------------------------------------

    def stat(self, path: Path | str) -> os.stat_result:
        """Return what is at a path itself; a link is not followed."""
        with self._last(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def open(self, path: Path | str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file; return its handle.

        Nothing else is opened even for a moment: to open a FIFO may wait, and a device may act.
        """
        with (
            self._last(path) as (folder, name),
            closing_handle(os.open(name, _ENTRY, dir_fd=folder)) as handle,
        ):
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise NotFollowed(self.root / path, "is not a regular file")
            self._must_be_owned(about, path)
            return os.open(f"/proc/self/fd/{handle}", flags | os.O_CLOEXEC)

    def read(self, path: Path | str, largest: int) -> bytes:
        """Return the first bytes of a regular file, at most `largest`."""
        with os.fdopen(self.open(path), "rb", buffering=0) as opened:
            return b"".join(pieces(opened.fileno(), largest))

    def create(self, path: Path | str, mode: int = 0o644) -> int:
        """Make a file that is not there yet, for reading and writing; return its handle."""
        with self._last(path) as (folder, name):
            return os.open(name, _NEW, mode, dir_fd=folder)

    def resume(self, path: Path | str) -> int:
        """Open a half file of our own for reading and writing, or begin it anew.

        Anything else of this name is removed: a link, another user's file, one with a second name.
        """
        with contextlib.suppress(OSError):
            handle = self.open(path, os.O_RDWR)
            if is_own(os.fstat(handle)):
                return handle
            os.close(handle)
        self.remove(path)
        return self.create(path)

    def write(self, path: Path | str, data: bytes, mode: int = 0o644) -> None:
        """Write a small file: after a power cut it is the old one or the new one, whole."""
        with self._last(path) as (folder, name):
            _must_not_be_a_folder(folder, name)
            write_at(folder, name, data, mode)

    def settle(self, handle: int, staged: Path | str, path: Path | str) -> None:
        """Give a file that was written its name: its content is synced first, then the name."""
        os.fsync(handle)
        self.rename(staged, path)
        self.sync((self.root / path).parent)

    def rename(self, old: Path | str, new: Path | str) -> None:
        """Rename a file or folder; a file takes the place of anything that is there."""
        with self._last(old) as (source, name), self._last(new) as (folder, other):
            if not stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
                _must_not_be_a_folder(folder, other)
            os.rename(name, other, src_dir_fd=source, dst_dir_fd=folder)

    def take(self, source: int, name: str, path: Path | str) -> None:
        """Move a file out of another folder, by its handle, to the place of what is here."""
        with self._last(path) as (folder, last):
            _must_not_be_a_folder(folder, last)
            os.rename(name, last, src_dir_fd=source, dst_dir_fd=folder)

    def link(self, path: Path | str, target: str) -> None:
        """Put a symbolic link in the place of what is there; `sync` has it on the disk."""
        with self._last(path) as (folder, name):
            staged = temporary_name(name)
            os.symlink(target, staged, dir_fd=folder)
            _must_not_be_a_folder(folder, name)
            os.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, path: Path | str) -> None:
        """Remove a file, or a folder with all in it; nothing needs to be there."""
        with contextlib.suppress(FileNotFoundError), self._last(path) as (folder, name):
            _remove(folder, name)

    def sync(self, path: Path | str = "") -> None:
        """Have the names in a folder on the disk."""
        with self.at(path) as folder:
            os.fsync(folder)

    # -- the way there -------------------------------------------------------------------------

    def _parts(self, path: Path | str) -> tuple[str, ...]:
        try:
            parts = (self.root / path).relative_to(self.root).parts
        except ValueError:
            parts = ("..",)
        if ".." in parts:
            raise NotFollowed(path, f"leads out of {self.root}")
        return parts

    @contextlib.contextmanager
    def _last(self, path: Path | str) -> Iterator[tuple[int, str]]:
        """Yield the handle of the folder in which a path ends, and its last name there."""
        *above, name = self._parts(path) or ("",)
        if not name:
            raise NotFollowed(path, "is not a name in a folder")
        with (
            closing_handle(self._open_folder(above, None)) as handle,
            _naming(self.root / path),
        ):
            yield handle, name

    def _open_folder(self, parts: tuple[str, ...] | list[str], mode: int | None) -> int:
        """Open a folder; with a mode, those that are missing are made."""
        handle, path = _open_root(self.root, mode), self.root
        try:
            for name in parts:
                path /= name
                with _naming(path):
                    inner = _enter(handle, name, mode)
                os.close(handle)
                handle = inner
                self._must_be_owned(os.fstat(handle), path)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _must_be_owned(self, about: os.stat_result, path: Path | str) -> None:
        if self.owners is not None and about.st_uid not in self.owners:
            raise NotFollowed(self.root / path, f"belongs to another user (uid {about.st_uid})")


def _scanned(folder: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        yield from found


def _too_many(path: Path, most: int) -> OSError:
    return OSError(errno.EMLINK, f"has more than {most} entries", str(path))


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give an error the whole path, and say of a link what is wrong."""
    try:
        yield
    except NotFollowed:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotFollowed(path) from None
        error.filename, error.filename2 = str(path), None
        raise


def _open_root(root: Path, mode: int | None) -> int:
    """Open a folder by its whole path, through links only that no other user can replace; with a
    mode it is made where it is missing."""
    try:
        return safe_paths.opened(root.absolute(), FOLDER)
    except ResourceError:
        raise NotFollowed(root, "is reached through a link that other users can replace") from None
    except FileNotFoundError:
        if mode is None:
            raise
    except OSError as error:
        error.filename = str(root)
        raise
    with closing_handle(_open_root(root.parent, mode)) as handle, _naming(root):
        return _enter(handle, root.name, mode)


def _enter(folder: int, name: str, mode: int | None) -> int:
    """Open a folder in a folder; with a mode it is made where it is missing."""
    try:
        return os.open(name, FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if mode is None:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=folder)
        os.fsync(folder)
    return os.open(name, FOLDER, dir_fd=folder)


def _must_not_be_a_folder(folder: int, name: str) -> None:
    """Remove a folder that has the name of a file to come: a rename does not take its place."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            _remove(folder, name)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        with closing_handle(_enter(folder, name, None)) as inner:
            safe_paths.empty(inner)
        os.rmdir(name, dir_fd=folder)


# What is done with files that are open already: read, write, copy, and see whose they are.

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
