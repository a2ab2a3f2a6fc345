"""A server's memory beside weights and cache, as own starts logged it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_cluster.logs.memory_account import MemoryAccount
from spark_cluster.planning.batch import for_batch_gib
from spark_cluster.planning.calibrate import Calibration
from spark_cluster.planning.speed.constants import LIMITS, Constants
from spark_cluster.planning.speed.serving import BATCHED_TOKENS

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
