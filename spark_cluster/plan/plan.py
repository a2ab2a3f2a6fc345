"""The whole plan: what fits, how fast it will be, what is known to go wrong; whether it can work.

A plan that does not fit names the nearest configurations that would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from spark_cluster.config.launch import Launch, Overrides, of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipe_schema import NotCarriedOver
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import Document, Flat, Hidden, Rounded, derived, printed
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.issues.entries import KnownIssueMatch
from spark_cluster.models.lookup import known_models
from spark_cluster.models.naming import base_of
from spark_cluster.models.shape import Geometry
from spark_cluster.plan.estimate import Estimate
from spark_cluster.plan.evidence import ComparedEvidence, Evidence
from spark_cluster.plan.fit import Fit, fit, kv_knob_bytes
from spark_cluster.plan.prefill import Prefill
from spark_cluster.plan.room import NodeMemory, batched_tokens
from spark_cluster.plan.serving import BATCHED_TOKENS
from spark_cluster.plan.speed import Decode, Speculative

# Configurations near one that does not fit, each of which would.

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
    whole, measured = fitted.whole_gib, fitted.measured_gib

    def tried(launch: Launch) -> Fit | None:
        try:
            return fit(launch, geometry, rooms[: launch.ranks], whole, runtime_gib=measured)
        except UsageError:  # its heads or layers cannot be divided so
            return None

    def working(start: Fit, before: str = "") -> list[Nearest]:
        sizes = range(smallest_tp, min(len(rooms) // start.launch.at_size(1).ranks, largest_tp) + 1)
        return [
            Nearest(f"{before}{change}", why, launch)
            for launch, change, why in _candidates(start, sizes)
            if (now := tried(launch)) is not None and now.fits
        ]

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


# The plan.

COPY_GB_S = 0.8
"""Node to node over the fabric, GB/s (parallel plain streams, a 16 GiB file)."""

DOWNLOAD_GB_S = 0.1
"""Assumed for the hub, GB/s; it cannot be known beforehand."""

LOAD_GIB_S = (0.13, 0.19)
"""From disk into memory, GiB/s: 48.07 GiB in 371 s and 15.76 in 84 s (vLLM's default loader)."""


@dataclass(frozen=True)
class Speed(Document):
    """The predicted speed.

    Attributes:
        context, prompt: tokens for which the figures are.
        drafted: with the launch's drafter; None without one.
        evidence: what was measured of it, here or by others.
        fits: what does not fit has no speed.
        generates: what generates nothing has none of decoding.
    """

    context: int
    prompt: int
    concurrency: int
    decode: Hidden[Decode]
    drafted: Hidden[Speculative | None]
    prefill: Hidden[Prefill]
    evidence: Hidden[Evidence | None] = None
    fits: Hidden[bool] = True
    generates: Hidden[bool] = True
    basis = derived(str, "best.basis")
    decode_tok_s = derived(Estimate | None, lambda one: one.decoding(one.best.request))
    decode_total_tok_s = derived(Estimate | None, lambda one: one.decoding(one.best.total))
    decode_without_drafter_tok_s = derived(
        Estimate | None, lambda one: one.decoding(one.decode.request)
    )
    prefill_tok_s = derived(
        Estimate | None, lambda one: one.prefill.tokens_s.rounded() if one.fits else None
    )
    ttfr_s = derived(
        Estimate | None, lambda one: one.prefill.seconds.rounded(3) if one.fits else None
    )
    bytes_per_token = derived(Annotated[float, Rounded()], "decode.bytes_per_token")

    @property
    def best(self) -> Decode | Speculative:
        """The speed with the drafter where there is one."""
        return self.drafted or self.decode

    def decoding(self, found: Estimate) -> Estimate | None:
        """Return a speed of decoding as it is printed; None where there is none."""
        return found.rounded() if self.fits and self.generates else None

    @printed
    def measured(self) -> ComparedEvidence | None:
        """What was measured, next to the prediction."""
        decodes = self.fits and self.generates
        return self.evidence.beside(self.best.request) if self.evidence and decodes else None

    @property
    def tok_s(self) -> float:
        """Tokens/s of each request: as measured where it was, else as predicted."""
        measured = self.evidence
        return (measured.low + measured.high) / 2 if measured else self.best.request.expected

    @property
    def range(self) -> tuple[float, float]:
        """The range that `tok_s` lies in."""
        each = self.best.request
        return self.evidence.range if self.evidence else (each.low, each.high)


@dataclass(frozen=True, kw_only=True)
class Feasibility(Document):
    """Whether a launch can work.

    Attributes:
        launch: with the share of the memory that was computed for it.
        issues: known issues, the worst first.
        nearest: configurations near this one that would work; empty when it does.
        reasons: why it does not fit, or is not known to run at this size.
        obstacles: why `up` refuses it all the same.
    """

    launch: Hidden[Launch]
    fit: Flat[Fit]
    issues: tuple[KnownIssueMatch, ...]
    nearest: tuple[Nearest, ...]
    reasons: tuple[str, ...]
    obstacles: tuple[str, ...] = ()

    @printed
    def feasible(self) -> bool:
        """True if it can work, as far as known."""
        return not (self.reasons or self.obstacles) and not any(
            i.severity == "error" for i in self.issues
        )


@dataclass(frozen=True)
class PlannedNode(Document):
    """The memory of a node, and what a server reserves of it.

    Attributes:
        vram_gib: with what it holds in addition to its share.
    """

    room: Flat[NodeMemory]
    reserved_gib: Annotated[float, Rounded(2)]
    vram_gib: Hidden[float]
    vram_mib = derived(Annotated[float, Rounded()], lambda node: node.vram_gib * 1024)


@dataclass(frozen=True, kw_only=True)
class Plan(Feasibility):
    """The result of `plan`.

    Attributes:
        title: the recipe's name, or the model of a command line.
        not_carried_over: what the recipe lacks of its source.
        overrides: engine arguments that are not those of the recipe's file.
    """

    title: Annotated[str, Field(serialization_alias="recipe")]
    speed: Flat[Speed]
    not_carried_over: tuple[NotCarriedOver, ...] = ()
    overrides: Overrides = field(default_factory=dict)
    fits = derived(bool, lambda plan: not plan.reasons)
    kv_cache_memory_bytes = derived(int, lambda plan: kv_knob_bytes(plan.fit))
    times_s = derived(dict[str, Annotated[float, Rounded()]], lambda plan: times(plan.fit))

    @printed
    def nodes(self) -> list[PlannedNode]:
        """The nodes with what is reserved on each."""
        return [
            PlannedNode(room, self.fit.reserved_gib, self.fit.vram_gib) for room in self.fit.rooms
        ]


def times(fit: Fit) -> dict[str, float]:
    """Predict how long it takes before it serves, seconds; downloads at an assumed rate.

    What nodes have is neither downloaded nor copied to them again.
    """
    gb, has_it = fit.disk_gib * 1.0737, [room.has_model for room in fit.rooms]
    found = {"download": 0.0 if any(has_it) else gb / DOWNLOAD_GB_S}
    if fit.launch.ranks > 1:
        found["copy"] = 0.0 if all(has_it) else gb / COPY_GB_S
    slow, fast = (0.0 if fit.dummy else fit.peak_gib / rate for rate in LOAD_GIB_S)
    return {**found, "load_low": fast, "load_high": slow}
