"""The time at which this process began: `spark_cluster.cli` imports this before all else.

What comes before is Python's own start (about 15 ms), which no portable call tells.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()
"""Seconds on the monotonic clock. The elapsed time of a run counts from here, so that it is what
the user waits for: most of a short run is spent importing."""


def elapsed() -> float:
    """Return the seconds since the process began."""
    return time.monotonic() - STARTED
