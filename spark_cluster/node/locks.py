"""Locks between the programs of this node: files that only root can open.

Anyone who can open a file can lock it, whatever its mode allows besides. So the files are 0600, in
a folder that is 0700; either is enough. The kernel releases a lock when its holder ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_cluster.node import paths

RUN = f"{paths.LOCKS}/run"
"""Held by a run that changes the node, and by the supervision while it acts."""

TUNING = f"{paths.LOCKS}/tuning"

LOOK_S = 0.05
"""Seconds between two tries to take a lock that somebody else holds."""


def is_held(handle: int) -> bool:
    """Return whether somebody else holds the lock of an open file alone."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def take(handle: int, within_s: float = 0.0) -> bool:
    """Take the lock of an open file alone; False where somebody else holds it all that time.

    Args:
        within_s: seconds for which it is tried again; by default it is tried once.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_S)
        else:
            return True


def opened(path: Path) -> int:
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
        handle = opened(self.path)
        try:
            if not take(handle, within_s):
                raise Locked(_parse(os.read(handle, 65536).decode(errors="replace")))
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


def _parse(text: str) -> dict[str, Any]:
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
