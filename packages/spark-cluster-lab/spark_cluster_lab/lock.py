"""The lock of a lab's state: one process changes a lab at a time, and a second one waits."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_cluster_lab.machine import Progress


class LabLock:
    """A lock that its holder may take again.

    Args:
        path: the file, which names the process that holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = threading.RLock()
        self._depth = 0
        self._lock: Any = None

    @contextmanager
    def held(self, progress: Progress) -> Iterator[None]:
        """Hold it; `progress` is told when another process has to end first."""
        with self._held:
            if self._depth == 0:
                self._lock = self._acquire(progress)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._lock.close()

    def _acquire(self, progress: Progress) -> Any:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.fchmod(handle, 0o600)  # anyone who can open it can hold it
        lock = os.fdopen(handle, "a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            progress(f"waiting: process {lock.read() or '?'} is changing the lab")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock
