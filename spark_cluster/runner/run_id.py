"""Ids of runs."""

from __future__ import annotations

import time


def new_run() -> str:
    """An id that sorts by time, within a second too: `20261120-141502-3fa9`."""
    now = time.time()
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + f"{int(now % 1 * 0x10000):04x}"
