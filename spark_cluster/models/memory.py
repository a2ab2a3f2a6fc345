"""The right --gpu-memory-utilization where the GPU shares its memory with everything else."""

from __future__ import annotations

import math

from spark_cluster.facts.model import Memory

GIB_KIB = 1024 * 1024
GIB = 1024**3

HIDDEN_GIB = 2.7
"""vLLM's start gate sees so much less free than MemAvailable says, GiB (source:
measured-on-gb10)."""

OUTSIDE_GIB = 5.6
"""What a server takes in addition to its reserved share: host memory and graphs that vLLM's own
accounting leaves out on unified memory, GiB."""

RESERVE_GIB = 4.0
"""What the operating system keeps, GiB; below 3 the host stops answering SSH."""

HIGHEST = 0.80
"""Highest share that is safe for TP=1 and for TP=2 over Ray (published range 0.70-0.80)."""

LOWEST = 0.10
"""A smaller share than this holds no model worth serving."""


def gate_gib(available_gib: float) -> float:
    """Return what vLLM's start gate lets it reserve: `free >= share * total`, as it sees free."""
    return available_gib - HIDDEN_GIB


def safe_gib(available_gib: float) -> float:
    """Return what a server may reserve so that the node still responds under load."""
    return available_gib - OUTSIDE_GIB - RESERVE_GIB


def share_of(gib: float, total_gib: float) -> float:
    """A share in hundredths, rounded down; 0.0 when there is nothing to share."""
    if total_gib <= 0:
        return 0.0
    return math.floor(100 * max(gib, 0.0) / total_gib + 1e-9) / 100


def utilization(memory: Memory) -> float:
    """The highest share of all memory that vLLM may reserve, two decimals, rounded down.

    vLLM starts only when `free >= share * total`, where total is all of MemTotal and free is about
    2.7 GiB below MemAvailable; its default of 0.92 fails on a Spark. What it takes on top of it
    is more than that, so that the gate is no limit here. Call it before the server starts: what
    runs already is part of what is not available.

    Returns:
        0.0 when the node tells no memory.
    """
    available = memory.available_kib / GIB_KIB
    return min(HIGHEST, share_of(safe_gib(available), memory.total_kib / GIB_KIB))


def least(needed_gib: float, total_gib: float) -> float:
    """The smallest share that holds what is needed, two decimals, rounded up; 0.0 when the node
    tells no memory.
    """
    if total_gib <= 0:
        return 0.0
    return math.ceil(100 * needed_gib / total_gib - 1e-9) / 100
