"""The time at which this process began: `spark_cluster.cli` imports this before all else.

What comes before is Python's own start (about 15 ms), which no portable call tells.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()
"""Seconds on the monotonic clock. The elapsed time of a run counts from here, so that it is what
the user waits for: most of a short run is spent importing."""


_began = [STARTED]


def elapsed() -> float:
    """Return the seconds since the process began, or since `begin_again`."""
    return time.monotonic() - _began[0]


def begin_again() -> None:
    """Count from now on: `setup` runs several commands in one process."""
    _began[0] = time.monotonic()
