"""The node's run lock: one run at a time; it names its holder and is released with it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from spark_cluster.node import locks

PATIENCE = 1.0
"""Seconds to wait for a lock before its holder is named."""


class Locked(Exception):
    """Another run holds the lock; `owner` is what it wrote about itself."""

    def __init__(self, owner: dict[str, Any]) -> None:
        super().__init__("locked")
        self.owner = owner


class NodeLock:
    """An advisory lock on a file; released by the kernel when the agent ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner: dict[str, Any] = {}
        """What its holder, this agent, said of itself; empty without the lock."""
        self._handle: int | None = None

    def take(self, owner: dict[str, Any]) -> None:
        """Take the lock, or raise Locked with what its holder wrote."""
        if self._handle is not None:
            return
        handle = locks.opened(self.path)
        if not _flock(handle):
            text = os.read(handle, 65536).decode(errors="replace")
            os.close(handle)
            raise Locked(_parse(text))
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({**owner, "pid": os.getpid()}).encode())
        self._handle = handle
        self.owner = owner

    def release(self) -> None:
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None


def _flock(handle: int) -> bool:
    """Return whether the lock was free, or became free within a moment: a run that has just ended
    may still be exiting when the next one starts.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)


def _parse(text: str) -> dict[str, Any]:
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
