"""Moments that others may read later: ages survive clock steps, and reboots as well as can be."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now() -> dict[str, Any]:
    """This moment, by the wall clock and by the monotonic clock.

    The monotonic clock counts from boot and is the same for all processes (clock_gettime(2)).
    """
    return {"time": time.time(), "monotonic": time.monotonic(), "boot": _boot()}


def age(moment: Mapping[str, Any]) -> float:
    """Seconds since a moment of `now`.

    In the same boot by the monotonic clock; of an earlier boot only the wall's clock can tell, and
    what it tells of the future is 0.
    """
    if moment.get("boot") == _boot() and "monotonic" in moment:
        return max(0.0, time.monotonic() - float(moment["monotonic"]))
    return max(0.0, time.time() - float(moment.get("time", 0.0)))


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
