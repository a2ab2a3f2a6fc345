"""The whole plan: what fits, how fast it will be, what is known to go wrong; go or no-go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.config.launch import Launch
from spark_cluster.config.overrides import Overrides
from spark_cluster.config.recipe_schema import NotCarriedOver
from spark_cluster.known_issues.match import KnownIssueMatch
from spark_cluster.planning.evidence import Case, Evidence, own_first
from spark_cluster.planning.fit import Fit, kv_knob_bytes
from spark_cluster.planning.nearest import Nearest
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.decode import Decode, decode
from spark_cluster.planning.speed.prefill import Prefill, prefill
from spark_cluster.planning.speed.speculative import Speculative, speculative
from spark_cluster.planning.whole_model import disk_gib

COPY_GB_S = 0.8
"""Node to node over the fabric, GB/s (parallel plain streams, a 16 GiB file)."""

DOWNLOAD_GB_S = 0.1
"""Assumed for the hub, GB/s; it cannot be known beforehand."""

LOAD_GIB_S = (0.13, 0.19)
"""From disk into memory, GiB/s: 48.07 GiB in 371 s and 15.76 in 84 s (vLLM's default loader)."""


@dataclass(frozen=True)
class Speed:
    """The predicted speed.

    Attributes:
        context, prompt: tokens for which the figures are.
        drafted: with the launch's drafter; None without one.
        evidence: what was measured of it, here or by others.
    """

    context: int
    prompt: int
    concurrency: int
    decode: Decode
    drafted: Speculative | None
    prefill: Prefill
    evidence: Evidence | None = None

    @property
    def best(self) -> Decode | Speculative:
        """The speed with the drafter where there is one."""
        return self.drafted or self.decode

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

    def to_dict(self, *, fits: bool = True, generates: bool = True) -> dict[str, Any]:
        """Return it as `plan --json` prints it; what does not fit has no speed, and
        what generates nothing none of decoding.
        """
        best, evidence = self.best, self.evidence
        decodes = fits and generates
        return {
            "decode_tok_s": best.request.to_dict() if decodes else None,
            "decode_total_tok_s": best.total.to_dict() if decodes else None,
            "decode_without_drafter_tok_s": self.decode.request.to_dict() if decodes else None,
            "bytes_per_token": round(self.decode.bytes_per_token),
            "prefill_tok_s": self.prefill.tokens_s.to_dict() if fits else None,
            "ttfr_s": self.prefill.seconds.to_dict(3) if fits else None,
            "measured": evidence.to_dict(best.request) if evidence and decodes else None,
            "context": self.context,
            "prompt": self.prompt,
            "concurrency": self.concurrency,
            "basis": best.basis,
        }


@dataclass(frozen=True, kw_only=True)
class Feasibility:
    """Whether a launch can work.

    Attributes:
        launch: with the share of the memory that was computed for it.
        issues: known issues, the worst first.
        nearest: configurations near this one that would work; empty when it does.
        reasons: why it does not fit, or is not known to run at this size.
        obstacles: why `up` refuses it all the same.
    """

    launch: Launch
    fit: Fit
    issues: tuple[KnownIssueMatch, ...]
    nearest: tuple[Nearest, ...]
    reasons: tuple[str, ...]
    obstacles: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """True if it can work, as far as known."""
        return not (self.reasons or self.obstacles) and not any(
            i.severity == "error" for i in self.issues
        )


@dataclass(frozen=True, kw_only=True)
class Plan(Feasibility):
    """The result of `plan`.

    Attributes:
        title: the recipe's name, or the model of a command line.
        not_carried_over: what the recipe lacks of its source.
        overrides: engine arguments that are not those of the recipe's file.
    """

    title: str
    speed: Speed
    not_carried_over: tuple[NotCarriedOver, ...] = ()
    overrides: Overrides = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `plan --json` prints it."""
        fit, cache = self.fit, self.fit.cache
        return {
            "recipe": self.title,
            "overrides": dict(self.overrides),
            "tp": fit.launch.tp,
            "pipeline_parallel": fit.launch.pp,
            "data_parallel": fit.launch.dp,
            "fits": not self.reasons,
            "feasible": self.feasible,
            "reasons": list(self.reasons),
            "obstacles": list(self.obstacles),
            "remarks": list(fit.remarks),
            "gpu_memory_utilization": fit.share,
            "gpu_memory_utilization_highest": fit.highest,
            "gpu_memory_utilization_needed": fit.needed,
            "kv_cache_memory_bytes": kv_knob_bytes(fit),
            "weights_gib": round(fit.weights_gib, 2),
            "load_peak_gib": round(fit.peak_gib, 2),
            "runtime_gib": round(fit.runtime_gib, 2),
            "kv_cache_gib": round(fit.kv_gib, 2),
            "kv_tokens": cache.tokens if cache else 0,
            "kv_rule": cache.rule if cache else None,
            "max_concurrency": round(cache.max_concurrency, 2) if cache else 0,
            "max_model_len": fit.max_model_len,
            **self.speed.to_dict(fits=not fit.reasons, generates=fit.launch.kind == "chat"),
            "times_s": {name: round(value) for name, value in times(fit).items()},
            "disk_gib": round(disk_gib(fit.launch, fit.serving, fit.peak_gib), 1),
            "nodes": [
                {
                    **room.to_dict(),
                    "reserved_gib": round(fit.reserved_gib, 2),
                    "vram_mib": round(fit.reserved_gib * 1024),
                }
                for room in fit.rooms
            ],
            "not_carried_over": [entry.model_dump() for entry in self.not_carried_over],
            "nearest": [near.to_dict() for near in self.nearest],
            "issues": [issue.to_dict() for issue in self.issues],
        }


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
    launch = fit.launch
    names = (launch.model, launch.base or "")
    case = Case(names, fit.serving, concurrency, context, drafts or 0)
    return Speed(context, prompt, concurrency, plain, drafted, first, own_first(own, case))


def times(fit: Fit) -> dict[str, float]:
    """Predict how long it takes before it serves, seconds; downloads at an assumed rate."""
    gb = disk_gib(fit.launch, fit.serving, fit.peak_gib) * 1.0737
    found = {"download": gb / DOWNLOAD_GB_S}
    if fit.launch.ranks > 1:
        found["copy"] = gb / COPY_GB_S
    slow, fast = (fit.peak_gib / rate for rate in LOAD_GIB_S)
    return {**found, "load_low": fast, "load_high": slow}
