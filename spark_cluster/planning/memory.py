"""The right --gpu-memory-utilization where the GPU shares its memory with everything else."""

from __future__ import annotations

import math

from spark_cluster.facts.model import Memory

GIB_KIB = 1024 * 1024
HIDDEN_GIB = 2.7
"""vLLM's start gate sees so much less free than MemAvailable says (measured on GB10, GiB)."""

RESERVE_GIB = 4.0
"""What the operating system keeps, GiB; below 3 the host stops answering SSH."""

HIGHEST = 0.80
"""Highest share that is safe for TP=1 and for TP=2 over Ray (published range 0.70-0.80)."""

LOWEST = 0.10
"""A smaller share than this holds no model worth serving."""


def utilization(memory: Memory) -> float:
    """The share of all memory that vLLM may reserve, two decimals, rounded down.

    vLLM starts only when `free >= share * total`, where total is all of MemTotal and free is about
    2.7 GiB below MemAvailable; its default of 0.92 fails on a Spark. Call it before the server
    starts: what runs already is part of what is not available.

    Returns:
        0.0 when the node tells no memory.
    """
    if memory.total_kib <= 0:
        return 0.0
    free = memory.available_kib - (HIDDEN_GIB + RESERVE_GIB) * GIB_KIB
    return min(HIGHEST, math.floor(100 * max(free, 0.0) / memory.total_kib) / 100)
