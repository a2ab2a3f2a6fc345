"""What a container can leave in a folder that it may write, and what must not come of it.

A container is uid 0 in its mounts: it makes links to any path of the host, FIFOs, sockets, devices
and files of any size there, and exchanges one for another while root is at work.
"""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HUGE = 1 << 40
"""Bytes of the huge file, which is a hole."""


def nest(folder: Path) -> None:
    """Make more folders in each other, in a folder, than Python calls functions in each other."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)


@dataclass
class Outside:
    """A part of the host that a container cannot reach, and what it is like before the attack.

    Attributes:
        folder: in it `secret`, which only root can read, and a folder like /etc/cron.d.
    """

    folder: Path
    content: bytes
    before: dict[str, tuple[object, ...]] = field(default_factory=dict)

    @property
    def secret(self) -> Path:
        return self.folder / "secret"

    @property
    def cron(self) -> Path:
        return self.folder / "cron.d"


def outside(folder: Path, size: int = 100) -> Outside:
    """Make the folder and remember what is in it.

    Args:
        size: bytes of the secret, so that it can have that of a file of the cache.
    """
    made = Outside(folder, b"root:$6$secret:".ljust(size, b"s")[:size])
    made.cron.mkdir(parents=True)
    (made.cron / "job").write_bytes(made.content)
    made.secret.write_bytes(made.content)
    for path in (made.secret, made.cron / "job"):
        path.chmod(0o600)
    for path in (made.secret, made.cron / "job", made.cron, folder):
        os.utime(path, (1, 2))  # a read is seen: relatime moves what is older than the last write
    made.before = _seen(folder)
    return made


def untouched(host: Outside, *caches: Path, read: bool = False) -> None:
    """Assert that nothing outside was read, written or changed, and that no cache holds it.

    Args:
        read: its content may have been read (by a hard link, it is a file of the cache, too).
    """
    seen = _seen(host.folder)
    if read:
        seen, before = ({n: s[:-1] for n, s in found.items()} for found in (seen, host.before))
    else:
        before = host.before
    assert seen == before
    assert all(path.read_bytes() == host.content for path in (host.secret, host.cron / "job"))
    same = {(path.stat().st_dev, path.stat().st_ino) for path in host.folder.rglob("*")}
    for cache in caches:
        for place, _, names in os.walk(cache):
            for name in names:
                _must_not_hold(Path(place) / name, host.content, same)


def _must_not_hold(path: Path, content: bytes, same: set[tuple[int, int]]) -> None:
    about = path.lstat()
    if stat.S_ISREG(about.st_mode) and (about.st_dev, about.st_ino) not in same:
        assert about.st_size >= HUGE or content not in path.read_bytes(), path


def _seen(folder: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in (folder, *folder.rglob("*")):
        about = path.lstat()
        atime = about.st_atime_ns if stat.S_ISREG(about.st_mode) else 0
        owner = (about.st_mode, about.st_uid, about.st_gid)
        found[str(path)] = (*owner, about.st_mtime_ns, about.st_size, atime)
    return found


# -- tricks ------------------------------------------------------------------------------------


def _device(path: Path, _host: Outside) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero: it never ends
    except PermissionError:
        pytest.skip("devices cannot be made here")


def _socket(path: Path, _host: Outside) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        handle = os.open(path.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{handle}/{path.name}")  # a path of a socket has 107 bytes
        os.close(handle)


def _huge(path: Path, _host: Outside) -> None:
    path.touch()
    os.truncate(path, HUGE)


FILE_TRICKS: dict[str, Callable[[Path, Outside], None]] = {
    "link": lambda path, host: path.symlink_to(host.secret),
    "dangling link": lambda path, host: path.symlink_to(host.cron / "planted"),
    "fifo": lambda path, _host: os.mkfifo(path),
    "device": _device,
    "socket": _socket,
    "huge file": _huge,
    "hard link": lambda path, host: path.hardlink_to(host.secret),
    "folder": lambda path, _host: path.mkdir(),
}
"""What can have the place of a file."""

FOLDER_TRICKS: dict[str, Callable[[Path, Outside], None]] = {
    "link": lambda path, host: path.symlink_to(host.cron),
    "dangling link": lambda path, host: path.symlink_to(host.folder / "planted"),
    "link upwards": lambda path, host: path.symlink_to(os.path.relpath(host.cron, path.parent)),
    "fifo": lambda path, _host: os.mkfifo(path),
    "device": _device,
    "huge file": _huge,
}
"""What can have the place of a folder."""


def leave(trick: str, path: Path, host: Outside, tricks: dict[str, Callable[..., None]]) -> None:
    """Put a trick in the place of a file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    tricks[trick](path, host)


_EXCHANGE = """
import ctypes, sys
one, other = (word.encode() for word in sys.argv[1:])
libc = ctypes.CDLL(None)
libc.renameat2(-100, one, -100, other, 2)
print(flush=True)
while True:
    libc.renameat2(-100, one, -100, other, 2)
"""
"""RENAME_EXCHANGE without end: a folder is a link, and a folder again."""


@contextlib.contextmanager
def exchanged(path: Path, target: Path) -> Iterator[None]:
    """Exchange a folder or file for a link to `target`, again and again, meanwhile."""
    link = path.with_name(f"{path.name}.link")
    link.symlink_to(target)
    command = [sys.executable, "-I", "-c", _EXCHANGE, str(path), str(link)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline()
            yield
        finally:
            process.kill()
