"""Configurations near one that does not fit, each of which would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_cluster.launch import Launch
from spark_cluster.planning.fit import Fit, fit
from spark_cluster.planning.geometry import Geometry
from spark_cluster.planning.room import Room

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

    def document(self) -> dict[str, str]:
        """As in `plan --json`."""
        return {"change": self.change, "why": self.why}


def nearest(
    fitted: Fit, geometry: Geometry, rooms: Sequence[Room], largest_tp: int
) -> list[Nearest]:
    """The smallest changes that make it fit, each tried; nothing when none does.

    Args:
        rooms: all nodes that there are.
        largest_tp: what the recipe can be split over.
    """
    return [
        Nearest(change, why)
        for launch, change, why in _candidates(fitted, len(rooms), largest_tp)
        if fit(launch, geometry, rooms[: launch.tp], fitted.weights_gib * fitted.launch.tp).fits
    ]


def _candidates(fitted: Fit, nodes: int, largest_tp: int) -> Iterator[tuple[Launch, str, str]]:
    launch = fitted.launch
    if launch.number("gpu-memory-utilization"):
        args = {k: v for k, v in launch.args.items() if k != "gpu-memory-utilization"}
        yield (
            replace(launch, args=args),
            "gpu_memory_utilization: auto",
            f"at most {fitted.highest:.2f} is safe on these nodes",
        )
    cache = fitted.cache
    if cache is not None and cache.max_concurrency < 1:
        length = cache.max_model_len // STEP * STEP
        if length >= SHORTEST:
            shorter = _with(launch, "max-model-len", length)
            yield shorter, f"--max-model-len {length}", "less context"
    if not fitted.serving.kv_dtype.startswith("fp8"):
        yield _with(launch, "kv-cache-dtype", "fp8"), "--kv-cache-dtype fp8", "half the KV cache"
    for tp in range(launch.tp * 2, min(nodes, largest_tp) + 1):
        yield (
            replace(launch, tp=tp, nodes=tp),
            f"--tp {tp}",
            f"{fitted.weights_gib * launch.tp / tp:.1f} GiB of weights on each node",
        )


def _with(launch: Launch, flag: str, value: int | str) -> Launch:
    return replace(launch, args={**launch.args, flag: value})
