"""The whole plan: what fits, how fast it will be, what is known to go wrong; go or no-go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from spark_cluster.config.launch import Launch, Overrides
from spark_cluster.config.recipe_schema import NotCarriedOver
from spark_cluster.config.schema import Document, Flat, Hidden, Rounded, derived, printed
from spark_cluster.issues.entries import KnownIssueMatch
from spark_cluster.plan.evidence import Comparison, Evidence, by_others
from spark_cluster.plan.fit import Fit, kv_knob_bytes
from spark_cluster.plan.nearest import Nearest
from spark_cluster.plan.room import NodeMemory
from spark_cluster.plan.speed.constants import Constants
from spark_cluster.plan.speed.decode import Decode, Speculative, decode, speculative
from spark_cluster.plan.speed.estimate import Estimate
from spark_cluster.plan.speed.prefill import Prefill, prefill

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
    def measured(self) -> Comparison | None:
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
    """The memory of a node, and what a server reserves of it."""

    room: Flat[NodeMemory]
    reserved_gib: Annotated[float, Rounded(2)]
    vram_mib = derived(Annotated[float, Rounded()], lambda node: node.reserved_gib * 1024)


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
        return [PlannedNode(room, self.fit.reserved_gib) for room in self.fit.rooms]


def speed(
    fit: Fit,
    constants: Constants,
    *,
    context: int,
    prompt: int,
    concurrency: int = 1,
    acceptance: Sequence[float] = (),
    own: Evidence | None = None,
) -> Speed:
    """Predict how fast a launch will be.

    Args:
        context: tokens in each request's cache, in the middle of its answer.
        prompt: tokens of the prompt for the time to the first response.
        concurrency: requests at a time.
        acceptance: of drafted tokens by position; empty gives a range.
        own: what the user measured of it.

    Raises:
        UsageError: a count that cannot be.
    """
    plain = decode(fit.serving, context, concurrency, constants)
    drafts, drafted = fit.launch.drafted_tokens, None
    if drafts:
        drafted = speculative(
            fit.serving,
            context,
            drafts,
            acceptance,
            concurrency=concurrency,
            constants=constants,
        )
    first = prefill(fit.serving, prompt, constants=constants)
    measured = own or by_others(
        fit.launch, fit.serving, users=concurrency, context=context, drafted=drafts or 0
    )
    return Speed(
        *(context, prompt, concurrency, plain, drafted, first, measured),
        fits=fit.fits,
        generates=fit.launch.kind == "chat",
    )


def times(fit: Fit) -> dict[str, float]:
    """Predict how long it takes before it serves, seconds; downloads at an assumed rate."""
    gb = fit.disk_gib * 1.0737
    found = {"download": gb / DOWNLOAD_GB_S}
    if fit.launch.ranks > 1:
        found["copy"] = gb / COPY_GB_S
    slow, fast = (fit.peak_gib / rate for rate in LOAD_GIB_S)
    return {**found, "load_low": fast, "load_high": slow}
