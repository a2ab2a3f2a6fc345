"""How far the reading or fetching of a model is, in lines for people."""

from __future__ import annotations

import threading
import time

EVERY_S = 1.0
"""Seconds between two lines."""


class ByteProgress:
    """Prints lines about bytes that were read or came, at most one in EVERY_S.

    Args:
        done: what was done with them: "read", "here".
        total: bytes; 0 where it is not known.
        have: bytes that were done before.
    """

    def __init__(self, total: int, done: str = "read", have: int = 0) -> None:
        self._total, self._done, self._have = total, done, have
        self._began = self._shown = time.monotonic()
        self._lock = threading.Lock()
        self.read = 0

    def add(self, size: int) -> None:
        """Take note of bytes, from any thread."""
        with self._lock:
            self.read += size
            now = time.monotonic()
            if now - self._shown >= EVERY_S:
                self._shown = now
                print(self.line(now - self._began), flush=True)

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        return max(0, self._total - self._have - self.read)

    def line(self, seconds: float) -> str:
        """Return what is done after so many seconds, at which speed, and the time left."""
        return progress_line(self._done, self._have + self.read, self._total, self.read, seconds)


def progress_line(what: str, done: int, total: int, moved: int, seconds: float) -> str:
    """Return how far something is, its mean speed, and the time left.

    Args:
        what: was done with the bytes: "read", "from spark1".
        done: bytes that are done, those of earlier times with them.
        total: bytes; 0 where it is not known.
        moved: bytes that were done in these seconds.
    """
    size = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB" if total else f"{done / 1e9:.1f} GB"
    if not moved or seconds <= 0:
        return f"{size} {what}"
    rate = moved / seconds
    left = f", {_duration(max(0, total - done) / rate)} left" if total else ""
    return f"{size} {what}, {rate / 1e6:.0f} MB/s{left}"


def _duration(seconds: float) -> str:
    """Return `45 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
