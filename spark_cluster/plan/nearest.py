"""Configurations near one that does not fit, each of which would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import Document, Hidden
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.models.lookup import known_models
from spark_cluster.models.naming import base_of
from spark_cluster.models.shape import Geometry
from spark_cluster.plan.fit import Fit, fit
from spark_cluster.plan.room import NodeMemory, batched_tokens, for_batch_gib, has_own_memory
from spark_cluster.plan.speed.serving import BATCHED_TOKENS

SHARE = "gpu-memory-utilization"
AUTO = "gpu_memory_utilization: auto"

STEP = 1024
"""A proposed --max-model-len is a multiple of it, tokens."""

SHORTEST = 2048
"""No shorter context is worth proposing, tokens."""


@dataclass(frozen=True)
class Nearest(Document):
    """A change after which it works.

    Attributes:
        change: what to do, as on the command line or in the recipe.
        why: what it costs or brings.
        launch: what it is then; None for a hint that is no launch of its own.
    """

    change: str
    why: str
    launch: Hidden[Launch | None] = field(default=None, compare=False, repr=False)


def nearest(
    fitted: Fit,
    geometry: Geometry,
    rooms: Sequence[NodeMemory],
    largest_tp: int,
    *,
    smallest_tp: int = 1,
) -> list[Nearest]:
    """The smallest changes that make it fit, each tried; nothing when none does.

    Where no single one does, a safe share of the memory together with another one is tried.

    Args:
        rooms: all nodes that there are.
        largest_tp: what the recipe can be split over; `smallest_tp` the fewest nodes.
    """
    own = has_own_memory(fitted.rooms)
    runtime = fitted.runtime_gib - for_batch_gib(batched_tokens(fitted.launch), own=own)

    def tried(launch: Launch) -> Fit | None:
        try:
            return fit(
                launch, geometry, rooms[: launch.ranks], fitted.whole_gib, runtime_gib=runtime
            )
        except UsageError:  # its heads or layers cannot be divided so
            return None

    def working(start: Fit, before: str = "") -> list[Nearest]:
        sizes = range(smallest_tp, min(len(rooms) // start.launch.at_size(1).ranks, largest_tp) + 1)
        found = []
        for launch, change, why in _candidates(start, sizes):
            now = tried(launch)
            if now is not None and now.fits:
                found.append(Nearest(f"{before}{change}", why, launch))
        return found

    found = working(fitted)
    if found or not fitted.launch.number(SHARE):
        return found
    safe = tried(fitted.launch.without_flags(SHARE))
    return working(safe, f"{AUTO} and ") if safe is not None else []


def _candidates(fitted: Fit, sizes: range) -> Iterator[tuple[Launch, str, str]]:
    launch = fitted.launch
    if launch.number(SHARE):
        yield (
            launch.without_flags(SHARE),
            AUTO,
            f"at most {fitted.highest:.2f} is safe on these nodes",
        )
    yield from _less(fitted)
    if not fitted.serving.kv_dtype.startswith("fp8"):
        smaller = launch.with_flags({"kv-cache-dtype": "fp8"})
        yield smaller, "--kv-cache-dtype fp8", "half the KV cache"
    for tp in sizes:
        if tp != launch.tp and tp & (tp - 1) == 0:
            yield (
                launch.at_size(tp),
                f"--tp {tp}",
                f"{fitted.weights_gib * launch.tp / tp:.1f} GiB of weights on each node",
            )


def _less(fitted: Fit) -> Iterator[tuple[Launch, str, str]]:
    """Yield shorter requests, fewer of them, and smaller batches."""
    launch, cache = fitted.launch, fitted.cache
    made_for = fitted.serving.geometry.max_positions
    if made_for and (launch.number("max-model-len") or 0) > made_for:
        shorter = launch.with_flags({"max-model-len": made_for})
        yield shorter, f"--max-model-len {made_for}", "what the model was made for"
    if cache is not None and cache.max_concurrency < 1:
        length = cache.max_model_len // STEP * STEP
        if length >= SHORTEST:
            shorter = launch.with_flags({"max-model-len": length})
            yield shorter, f"--max-model-len {length}", "less context"
    users = launch.number("max-num-seqs")
    if users and users > 1:
        fewer = max(1, min(int(users) - 1, int(cache.max_concurrency) if cache else 1))
        yield (
            launch.with_flags({"max-num-seqs": fewer}),
            f"--max-num-seqs {fewer}",
            "fewer users at a time",
        )
    if batched_tokens(launch) > BATCHED_TOKENS:
        yield (
            launch.with_flags({"max-num-batched-tokens": BATCHED_TOKENS}),
            f"-o max-num-batched-tokens={BATCHED_TOKENS}",
            "smaller batches of prompts",
        )


# Other builds of the same model, which take less memory: of recipes, and of models known here.


def builds(launch: Launch, project: Project) -> Iterator[tuple[str, Launch]]:
    """Yield what to name instead, and the launch with that build; nothing is tried here.

    Recipes first; of the models in the table those that no recipe serves.
    """
    base = _base(launch)
    served = {(launch.model, launch.quantization)}
    for name, path in project.list("recipes").items():
        try:
            recipe = load_recipe(path, project)
        except SparkClusterError:  # said by `recipes list`
            continue
        sizes = recipe.tensor_parallel
        other = of_recipe(recipe, min(max(launch.tp, sizes.min), sizes.max))
        what = (recipe.model.name, recipe.model.quantization)
        if what not in served and _base(other) == base:
            served.add(what)
            yield f"recipe {name}", other
    models = {name for name, _ in served}
    for model in known_models():
        if model not in models and (base_of(model) or model) == base:
            plain = launch.without_flags("quantization")
            other = replace(plain, model=model, base=base, quantization=None, weights_gib=None)
            yield f"model {model}", other


def _base(launch: Launch) -> str:
    return launch.base or base_of(launch.model) or launch.model
