"""The right --gpu-memory-utilization, where the GPU shares its memory with everything else.

And on a GPU that has memory of its own, which no Spark is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_cluster.config.facts import Memory

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


@dataclass(frozen=True)
class Margins:
    """The memory that a server is not given, by the kind of memory, GiB.

    Attributes:
        hidden_gib: vLLM's start gate sees so much less free.
        outside_gib: a server takes it in addition to its reserved share.
        reserve_gib: the operating system keeps it.
        highest: share that is safe.
    """

    hidden_gib: float
    outside_gib: float
    reserve_gib: float
    highest: float


UNIFIED = Margins(HIDDEN_GIB, OUTSIDE_GIB, RESERVE_GIB, HIGHEST)

OWN = Margins(hidden_gib=0.5, outside_gib=2.0, reserve_gib=0.0, highest=0.90)
"""Of a GPU with memory of its own. CUDA itself takes 0.5 before the gate; a server held 0.6 more
than its share with TP=1, 1.3 with mp and 2.0 with Ray at TP=2 (source: measured-on-h200)."""


def margins(memory: Memory) -> Margins:
    """Return the margins of this kind of memory."""
    return OWN if memory.of_gpu else UNIFIED


def gate_gib(memory: Memory) -> float:
    """Return what vLLM's start gate lets it reserve: `free >= share * total`, as it sees free."""
    return memory.available_kib / GIB_KIB - margins(memory).hidden_gib


def safe_gib(memory: Memory) -> float:
    """Return what a server may reserve so that the node still responds under load."""
    kept = margins(memory)
    return memory.available_kib / GIB_KIB - kept.outside_gib - kept.reserve_gib


def share_of(gib: float, total_gib: float) -> float:
    """A share in hundredths, rounded down; 0.0 when there is nothing to share."""
    if total_gib <= 0:
        return 0.0
    return math.floor(100 * max(gib, 0.0) / total_gib + 1e-9) / 100


def utilization(memory: Memory) -> float:
    """The highest share of all memory that vLLM may reserve, two decimals, rounded down.

    vLLM starts only when `free >= share * total`, where on a Spark total is all of MemTotal and
    free is about 2.7 GiB below MemAvailable; its default of 0.92 fails there. What it takes on top
    of it is more than that, so that the gate is no limit here. Call it before the server starts:
    what runs already is part of what is not available.

    Returns:
        0.0 when the node tells no memory.
    """
    safe = share_of(safe_gib(memory), memory.total_kib / GIB_KIB)
    return min(margins(memory).highest, safe)


def least(needed_gib: float, total_gib: float) -> float:
    """The smallest share that holds what is needed, two decimals, rounded up; 0.0 when the node
    tells no memory.
    """
    if total_gib <= 0:
        return 0.0
    return math.ceil(100 * needed_gib / total_gib - 1e-9) / 100
