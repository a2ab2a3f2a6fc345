"""Configurations near one that does not fit, each of which would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_cluster.config.launch import Launch
from spark_cluster.models import Geometry
from spark_cluster.planning.fit import Fit, fit
from spark_cluster.planning.room import NodeMemory

SHARE = "gpu-memory-utilization"
AUTO = "gpu_memory_utilization: auto"

STEP = 1024
"""A proposed --max-model-len is a multiple of it, tokens."""

SHORTEST = 2048
"""No shorter context is worth proposing, tokens."""


@dataclass(frozen=True)
class Nearest:
    """A change after which it works.

    Attributes:
        change: what to do, as on the command line or in the recipe.
        why: what it costs or brings.
    """

    change: str
    why: str

    def to_dict(self) -> dict[str, str]:
        """Return it as `plan --json` prints it."""
        return {"change": self.change, "why": self.why}


def nearest(
    fitted: Fit, geometry: Geometry, rooms: Sequence[NodeMemory], largest_tp: int
) -> list[Nearest]:
    """The smallest changes that make it fit, each tried; nothing when none does.

    Where no single one does, a safe share of the memory together with another one is tried.

    Args:
        rooms: all nodes that there are.
        largest_tp: what the recipe can be split over.
    """
    whole = fitted.weights_gib * fitted.launch.tp

    def tried(launch: Launch) -> Fit:
        return fit(launch, geometry, rooms[: launch.tp], whole)

    def working(start: Fit, before: str = "") -> list[Nearest]:
        return [
            Nearest(f"{before}{change}", why)
            for launch, change, why in _candidates(start, len(rooms), largest_tp)
            if tried(launch).fits
        ]

    found = working(fitted)
    if found or not fitted.launch.number(SHARE):
        return found
    return working(tried(fitted.launch.without_flags(SHARE)), f"{AUTO} and ")


def _candidates(fitted: Fit, nodes: int, largest_tp: int) -> Iterator[tuple[Launch, str, str]]:
    launch = fitted.launch
    if launch.number(SHARE):
        yield (
            launch.without_flags(SHARE),
            AUTO,
            f"at most {fitted.highest:.2f} is safe on these nodes",
        )
    cache = fitted.cache
    if cache is not None and cache.max_concurrency < 1:
        length = cache.max_model_len // STEP * STEP
        if length >= SHORTEST:
            shorter = launch.with_flags({"max-model-len": length})
            yield shorter, f"--max-model-len {length}", "less context"
    if not fitted.serving.kv_dtype.startswith("fp8"):
        smaller = launch.with_flags({"kv-cache-dtype": "fp8"})
        yield smaller, "--kv-cache-dtype fp8", "half the KV cache"
    for tp in range(launch.tp * 2, min(nodes, largest_tp) + 1):
        yield (
            launch.at_size(tp),
            f"--tp {tp}",
            f"{fitted.weights_gib * launch.tp / tp:.1f} GiB of weights on each node",
        )
