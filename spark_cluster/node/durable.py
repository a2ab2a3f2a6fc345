"""Files of our own on a node: writes that survive a power cut, locks, temporary files.

The names of our temporary files tell them from all others: see `TemporaryFiles`.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spark_cluster.node import paths, safe_paths
from spark_cluster.node.replies import object_in
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.values import ResourceError, explain, looks

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
    with closing_handle(os.open(path, os.O_RDONLY | flags)) as handle:
        os.fsync(handle)


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder and those above it, each one synced into the one that it is in."""
    if folder.is_dir():
        return
    make_folder(folder.parent, 0o755)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a small file of our own: after a power cut it is the old one or the new one, whole."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with _lock, naming(path), closing_handle(os.open(path.parent, flags)) as folder:
        write_at(folder, path.name, data, mode)


def put_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write it likewise; its folder is made where it is missing, for its user only."""
    make_folder(path.parent)
    write_file(path, data, mode)


def write_at(folder: int, name: str, data: bytes, mode: int) -> None:
    """Write one in an open folder, without following a link; what crashes left of it is removed.

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
        with closing_handle(os.open(path, flags, dir_fd=folder)) as handle:
            return is_lock_held(handle)
    except OSError:
        return False


LARGEST_OBJECT = 64 << 20
"""Bytes of a file that `read_object` reads; the manifest of a large model has some."""


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of our own; empty where it is missing, damaged, too large
    for any of ours, or no regular file: a link is not followed."""
    try:
        with safe_paths.file_in(path) as file:
            data = file.read(LARGEST_OBJECT + 1)
    except (OSError, ResourceError):
        return {}
    return object_in(data) if len(data) <= LARGEST_OBJECT else {}


def append_line(path: Path, entry: Any) -> None:
    """Add a JSON line, synced; when the disk is full nothing of it stays.

    A line that a crash tore is ended first, so that it costs itself only.
    """
    with _lock:
        new, flags = not path.exists(), os.O_RDWR | os.O_APPEND | os.O_CREAT
        with closing_handle(os.open(path, flags, 0o600)) as handle, naming(path):
            _append(handle, json.dumps(entry, sort_keys=True).encode() + b"\n")
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


# Locks between the programs of this node: files that only root can open.
#
# Anyone who can open a file can lock it, whatever its mode allows besides. So the files are 0600,
# in a folder that is 0700; either is enough. The kernel releases a lock when its holder ends.

RUN_LOCK = f"{paths.LOCKS}/run"
"""Held by a run that changes the node, and by the supervision while it acts."""

TUNING_LOCK = f"{paths.LOCKS}/tuning"

LOOK_S = 0.05
"""Seconds between two tries to take a lock that somebody else holds."""


def is_lock_held(handle: int) -> bool:
    """Return whether somebody else holds the lock of an open file alone."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def take_lock(handle: int, within_s: float = 0.0) -> bool:
    """Take the lock of an open file alone; False where somebody else holds it all that time.

    Args:
        within_s: seconds for which it is tried again; by default it is tried once.
    """
    for _ in looks(within_s, LOOK_S):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def open_lock(path: Path) -> int:
    """Open the file of a lock; it and its folder, which holds nothing else, are made where absent.

    Raises:
        OSError: it cannot be made, or there is a link in its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(handle, 0o600)
    return handle


class Locked(Exception):
    """Another run holds the lock; `owner` is what it wrote about itself."""

    def __init__(self, owner: dict[str, Any]) -> None:
        super().__init__("locked")
        self.owner = owner


class NodeLock:
    """The node's run lock: one run at a time; it names its holder, and is released by the kernel
    when that ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner: dict[str, Any] = {}
        """What its holder, this process, said of itself; empty without the lock."""
        self._handle: int | None = None

    def take(self, owner: Mapping[str, Any], within_s: float = 0.0) -> None:
        """Take the lock, or raise Locked with what its holder wrote.

        Args:
            owner: what is told to those that find it taken.
            within_s: seconds for which it is tried again.
        """
        if self._handle is not None:
            return
        handle = open_lock(self.path)
        try:
            if not take_lock(handle, within_s):
                raise Locked(object_in(os.read(handle, 65536).decode(errors="replace")))
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps({**owner, "pid": os.getpid()}).encode())
        except BaseException:  # as of a full /run: who goes on after it must not hold the lock
            os.close(handle)
            raise
        self._handle = handle
        self.owner = dict(owner)

    def release(self) -> None:
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None


# Temporary files next to what they become: names that tell whose they are, removal after a crash.
#
# A new file or link is made under a temporary name in its folder and then renamed; a folder that is
# to be removed is renamed to one first. The name is `.NAME.spark-cluster-` and 16 hexadecimal
# digits, of which the last 8 are a checksum of the others: no file of a user is taken for one. The
# folders are listed, before the first such file is made in each, in `temporary-folders` below the
# node's state folder; the next run removes what a crash has left there.

LIST = "temporary-folders"
_listing = threading.Lock()
_in_use: set[str] = set()
"""Names of the temporary files that this process is at work with."""


class TemporaryFiles:
    """The temporary files of one node.

    Args:
        state: the node's state folder.
    """

    def __init__(self, state: Path) -> None:
        self._list = state / LIST

    def path_for(self, target: Path) -> Path:
        """A temporary name in the folder of `target`, which may be an open one (`safe_paths`); the
        folder is listed first."""
        folder = os.path.realpath(target.parent)
        with _listing:
            if folder not in read_lines(self._list)[0]:
                make_folder(self._list.parent, 0o755)
                append_line(self._list, folder)
            path = target.parent / temporary_name(target.name)
            _in_use.add(path.name)
        return path

    def done(self, path: Path) -> None:
        """Remove a temporary file if it is still there: it was renamed, or is given up.

        Raises:
            OSError: it cannot be removed; `filename` is the whole path of what could not be.
        """
        try:
            _remove(path)
        finally:
            _in_use.discard(path.name)

    def remove_folder(self, target: Path) -> None:
        """Remove a folder: first its name, so that after a crash no half of it is in its place.

        Raises:
            OSError: a part cannot be removed; what is left has its name again.
        """
        staged = self.path_for(target)
        target.rename(staged)
        try:
            self.done(staged)
        except OSError as error:
            staged.rename(target)
            error.filename = str(error.filename).replace(str(staged), str(target), 1)
            raise

    def clean(self, note: Callable[[str], None]) -> None:
        """Remove what a crash has left. Only for the holder of the node's lock.

        Args:
            note: called with each one that cannot be removed; it stays listed for the next run.
        """
        with _listing:
            folders = [Path(name) for name in read_lines(self._list)[0] if isinstance(name, str)]
            if not folders:
                return
            left = [folder for folder in folders if _clean(folder, note)]
            if not left:
                self._list.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all in it; a container may have made one of any depth.

    Raises:
        OSError: a part cannot be removed; `filename` is its whole path.
    """
    handle = os.open(folder, safe_paths.FOLDER)
    with closing_handle(handle), safe_paths.naming_below(folder):
        safe_paths.empty(handle)
    folder.rmdir()


def mount_points() -> list[str]:
    """Return where file systems are mounted; nothing on a system that does not tell.

    source: proc(5), /proc/self/mountinfo: space, tab, newline and backslash are in octal.
    """
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    except OSError:
        return []
    return [os.fsdecode(_unescaped(line.split(b" ")[4])) for line in lines if line]


def mounts_below(folder: Path) -> bool:
    """Return whether a file system is mounted on `folder` or in it."""
    inside = os.path.realpath(folder)
    return any(point == inside or point.startswith(f"{inside}/") for point in mount_points())


def _unescaped(point: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), point)


def _clean(folder: Path, note: Callable[[str], None]) -> bool:
    """Remove our temporary files in a folder; return whether any are left."""
    try:
        with safe_paths.folder(folder) as pinned:
            for path in _ours(pinned):
                if path.name not in _in_use and not is_being_written(path):
                    _try_to_remove(folder, path, note)
            return bool(_ours(pinned))
    except ResourceError as error:
        note(f"what a crashed run left cannot be removed: {error.message}; remove it yourself")
        return True
    except OSError:
        return False  # the folder is gone, and what was in it


def _ours(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if is_temporary(path.name)]


def _try_to_remove(folder: Path, path: Path, note: Callable[[str], None]) -> None:
    try:
        _remove(path)
    except OSError as error:
        error.filename = str(error.filename).replace(str(path.parent), str(folder), 1)
        note(f"what a crashed run left cannot be removed: {explain(error)}; remove it yourself")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        if not mounts_below(path):
            remove_tree(path)
    else:
        path.unlink(missing_ok=True)
