"""The link's constants as they were measured, instead of those that were fitted to others' runs.

A measured all-reduce is a step's without what the engine adds to it, so the slowest one of the
range stays what was seen of others at least. Where runs over several nodes are given as well, the
fit starts from the measured one and has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_cluster.errors import UsageError
from spark_cluster.logs.memory_account import MemoryAccount
from spark_cluster.planning.batch import for_batch_gib
from spark_cluster.planning.calibrate import Calibration, Point, calibrate
from spark_cluster.planning.speed.constants import LIMITS, Constants
from spark_cluster.planning.speed.serving import BATCHED_TOKENS


@dataclass(frozen=True)
class MeasuredLink:
    """All-reduces of a model's own message sizes.

    Attributes:
        latency_us: of one of a token's size; `low_us` and `high_us` the fastest and the slowest.
        bytes_s: that one of a prefill's size does: its bytes over its time, bytes/s.
    """

    latency_us: float
    low_us: float
    high_us: float
    bytes_s: float

    def constants(self) -> dict[str, float]:
        """Return the constants by name.

        Raises:
            UsageError: one of them cannot be.
        """
        usual = Constants()
        found = {
            "allreduce_us": self.latency_us,
            "allreduce_low_us": self.low_us,
            "allreduce_high_us": max(self.high_us, usual.allreduce_high_us),
            "link": self.bytes_s,
        }
        limits = {**LIMITS, "link": (usual.link / 100, usual.link * 100)}
        for name, value in found.items():
            low, high = limits[name]
            if not math.isfinite(value) or not low <= value <= high:
                raise UsageError(f"{name}: measured {value:g}, expected {low:g} to {high:g}")
        return found


def fitted(points: Sequence[Point], link: MeasuredLink | None) -> Calibration:
    """Fit the constants to runs, with those of the link as they were measured.

    Args:
        points: none, where only the link was measured.

    Raises:
        UsageError: there are too few points, or what was measured cannot be.
        Failed: no sensible constants describe the points.
    """
    if link is None:
        return calibrate(points, Constants())
    measured = link.constants()
    start = replace(Constants(), **measured)  # type: ignore[arg-type]
    if not points:
        return Calibration(start, (), {}, 0, 0.0, 0.0, None, measured=tuple(measured))
    found = calibrate(points, start)
    own = ("allreduce_us", "allreduce_low_us", "allreduce_high_us")
    decided = set(own) if "allreduce_us" in found.fitted else set()
    return replace(found, measured=tuple(name for name in measured if name not in decided))


# A server's memory beside weights and cache, as own starts logged it.

UNFITTED = Calibration(Constants(), (), {}, 0, 0.0, 0.0, None)
"""Where only memory was measured."""

NAME = "runtime_gib"
"""Of the constant."""


def runtime_gib(account: MemoryAccount) -> float:
    """Return what was logged, less what a larger batch adds, GiB."""
    batch = account.batched_tokens or BATCHED_TOKENS
    return round(account.runtime_gib - for_batch_gib(batch), 3)


def implausible(account: MemoryAccount) -> str:
    """Return why an account tells nothing of a Spark; empty where it does.

    A tiny model for tests takes next to nothing, and plans of others would reserve too little.
    """
    found, (low, high) = runtime_gib(account), LIMITS[NAME]
    if low <= found <= high:
        return ""
    return f"{NAME}: logged {found:g} GiB, expected {low:g} to {high:g}"


def with_runtime(found: Calibration, accounts: Sequence[MemoryAccount]) -> Calibration:
    """Return a calibration with the largest runtime of these starts; as it is without any."""
    if not accounts:
        return found
    largest = max(runtime_gib(account) for account in accounts)
    constants = replace(found.constants, runtime_gib=largest)
    return replace(found, constants=constants, measured=(*found.measured, NAME))
