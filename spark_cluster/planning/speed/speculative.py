"""Speculative decoding: a small model drafts, the large one verifies all drafts in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from spark_cluster.errors import UsageError
from spark_cluster.planning.speed import decode as decoding
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.decode import doubts, step, step_seconds
from spark_cluster.planning.speed.estimate import Estimate, Uncertainty
from spark_cluster.planning.speed.serving import Serving

ERROR = 0.08
"""Largest error on the published sweep over the number of drafted tokens."""

USUAL = (0.82, 0.70, 0.92)
"""Acceptance of a drafted token, given the ones before, when it was not measured: in between, at
least and at most. 0.74 is prose (half of all drafts accepted at four a step), 0.90 code (76 %;
source: merritt-gemma4-mtp); with FP8 KV another article had 50 tokens/s in prose and up to 88 where
the text is easy to foresee, which is a little more either way (source: sovgrid-gemma4-31b)."""


@dataclass(frozen=True)
class Speculative:
    """Tokens/s with a drafter.

    Attributes:
        request: of one request; the roofline is that of decoding without a drafter, times the
            tokens a step gives.
        total: of all requests together.
        tokens_per_step: that one request gets out of a step.
        gain: expected tokens/s over those without a drafter.
        basis: what the figures rest on.
    """

    request: Estimate
    total: Estimate
    tokens_per_step: float
    gain: float
    basis: str


def tokens_per_step(acceptance: Sequence[float], drafted: int) -> float:
    """Tokens that a step gives: one of its own, and each draft whose forerunners were all accepted.

    Args:
        acceptance: of each position, given the ones before; the last goes on for those after it.
        drafted: tokens drafted in a step.

    Raises:
        UsageError: a rate outside 0 to 1, none at all, or nothing drafted.
    """
    if drafted < 1:
        raise UsageError(f"drafted tokens: found {drafted}, expected 1 or more")
    if not acceptance or not all(0 <= rate <= 1 for rate in acceptance):
        found = ", ".join(f"{rate:g}" for rate in acceptance) or "nothing"
        raise UsageError(f"acceptance: found {found}, expected rates from 0 to 1")
    rates = [acceptance[min(k, len(acceptance) - 1)] for k in range(drafted)]
    tokens: float = 1 + sum(accumulate(rates, mul))
    return tokens


def _gained(
    drafted: int, acceptance: Sequence[float], accepted_share: float | None
) -> tuple[float, float, float]:
    """Tokens that a step gives: expected, at least, at most."""
    if accepted_share is not None:
        tokens_per_step([accepted_share], drafted)
        known = 1 + drafted * accepted_share
    elif acceptance:
        known = tokens_per_step(acceptance, drafted)
    else:
        usual, least, most = (tokens_per_step([rate], drafted) for rate in USUAL)
        return usual, least, most
    return known, known, known


def _doubts(serving: Serving, concurrency: int) -> Uncertainty:
    """Return how far off it may be, apart from the acceptance."""
    doubt = doubts(serving, concurrency)
    doubt.more("drafting", ERROR - decoding.ERROR)
    if not serving.geometry.is_moe:
        doubt.more("a dense model, with which no drafter was fitted", 0.10)
    elif serving.quantization != "fp8":
        doubt.more("its weights, as drafters were fitted with FP8 only", 0.10)
    return doubt


def speculative(
    serving: Serving,
    context: float,
    drafted: int,
    acceptance: Sequence[float] = (),
    *,
    concurrency: int = 1,
    constants: Constants | None = None,
    accepted_share: float | None = None,
) -> Speculative:
    """Predict how fast it decodes with a drafter.

    A step takes `verify` times as long as one without, and `draft_ms` more for each drafted token.

    Args:
        drafted: tokens drafted in a step.
        acceptance: of each position, given the ones before; empty gives a range.
        accepted_share: of all drafts, instead of `acceptance`, as vLLM's metrics report it.

    Raises:
        UsageError: a count or a rate that cannot be.
    """
    constants = constants or Constants()
    gained, doubt = _gained(drafted, acceptance, accepted_share), _doubts(serving, concurrency)
    if len(set(gained)) > 1:
        doubt.why.append("an acceptance that was not measured")
    plain = step(serving, context, concurrency)
    draft = drafted * constants.draft_ms / 1e3
    fast, usual, slow = (
        constants.verify * seconds + draft for seconds in step_seconds(serving, plain, constants)
    )
    roofline = gained[2] / plain.shortest(constants)
    request = Estimate(
        expected=gained[0] / usual,
        low=(1 - doubt.down) * gained[1] / slow,
        high=min((1 + doubt.up) * gained[2] / fast, roofline),
        roofline=roofline,
    )
    basis = doubt.text(constants.basis)
    gain = request.expected * step_seconds(serving, plain, constants)[1]
    return Speculative(request, request.times(concurrency), gained[0], gain, basis)
