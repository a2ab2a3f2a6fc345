"""How far the reading or fetching of a model is, in lines for people."""

from __future__ import annotations

import threading
import time

EVERY_S = 1.0
"""Seconds between two lines."""


class Progress:
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

    def line(self, seconds: float) -> str:
        """Return what is done after so many seconds, at which speed, and the time left."""
        rate, have = self.read / seconds, self._have + self.read
        if not self._total:
            return f"{have / 1e9:.1f} GB {self._done}, {rate / 1e6:.0f} MB/s"
        left = max(0, self._total - have) / rate if rate else 0.0
        size = f"{have / 1e9:.1f} of {self._total / 1e9:.1f} GB {self._done}"
        return f"{size}, {rate / 1e6:.0f} MB/s, {_duration(left)} left"


def _duration(seconds: float) -> str:
    """Return `45 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
