"""A server's memory beside weights and cache, as own starts logged it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_cluster.errors import UsageError
from spark_cluster.logs.memory_account import MemoryAccount
from spark_cluster.planning.batch import for_batch_gib
from spark_cluster.planning.calibrate import Calibration
from spark_cluster.planning.speed.constants import LIMITS, Constants
from spark_cluster.planning.speed.serving import BATCHED_TOKENS

UNFITTED = Calibration(Constants(), (), {}, 0, 0.0, 0.0, None)
"""Where only memory was measured."""

NAME = "runtime_gib"
"""Of the constant."""


def runtime_gib(accounts: Sequence[MemoryAccount]) -> float:
    """Return the largest that was logged, less what a larger batch adds, GiB.

    Raises:
        UsageError: it cannot be.
    """
    batches = [account.batched_tokens or BATCHED_TOKENS for account in accounts]
    found = max(
        account.runtime_gib - for_batch_gib(batch)
        for account, batch in zip(accounts, batches, strict=True)
    )
    low, high = LIMITS[NAME]
    if not low <= found <= high:
        raise UsageError(f"{NAME}: logged {found:g} GiB, expected {low:g} to {high:g}")
    return round(found, 3)


def with_runtime(found: Calibration, accounts: Sequence[MemoryAccount]) -> Calibration:
    """Return a calibration with the runtime of these starts; as it is without any.

    Raises:
        UsageError: what they logged cannot be.
    """
    if not accounts:
        return found
    constants = replace(found.constants, runtime_gib=runtime_gib(accounts))
    return replace(found, constants=constants, measured=(*found.measured, NAME))
