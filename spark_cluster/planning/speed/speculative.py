"""Speculative decoding: a small model drafts, the large one verifies all drafts in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Annotated

from spark_cluster.config.recipe import Recipe
from spark_cluster.document import Document, Hidden, Rounded, derived
from spark_cluster.errors import UsageError
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.decode import (
    decode,
    doubts,
    known,
    over_switch,
    shortest,
    step,
    step_seconds,
)
from spark_cluster.planning.speed.estimate import Estimate, Uncertainty, usual_range
from spark_cluster.planning.speed.serving import Serving, draft_read

USUAL = (0.82, 0.70, 0.92)
"""Acceptance of a drafted token, given the ones before, when it was not measured: in between, at
least and at most. 0.74 is prose (half of all drafts accepted at four a step), 0.90 code (76 %;
source: merritt-gemma4-mtp); with FP8 KV another article had 50 tokens/s in prose and up to 88 where
the text is easy to foresee, which is a little more either way (source: sovgrid-gemma4-31b)."""


CONTEXT = 1024
"""Tokens in the cache of a request when nothing is said, as in `plan` and `predict speed`: a prompt
of 512 and half an answer."""


@dataclass(frozen=True)
class Speculative(Document):
    """Tokens/s with a drafter.

    Attributes:
        request: of one request; the roofline is reading once, at the full bandwidth, for the tokens
            that a step gives: all of the drafted ones where the acceptance is not known.
        total: of all requests together.
        tokens_per_step: that one request gets out of a step.
        gain: expected tokens/s over those without a drafter.
        basis: what the figures rest on.
    """

    request: Hidden[Estimate]
    total: Hidden[Estimate]
    tokens_per_step: Annotated[float, Rounded(2)]
    gain: Annotated[float, Rounded(2)]
    basis: Hidden[str]
    decode_tok_s = derived(Estimate, lambda found: found.request.rounded())
    total_tok_s = derived(Estimate, lambda found: found.total.rounded())


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


def _doubts(serving: Serving, concurrency: int, *, known_model: bool) -> Uncertainty:
    """Return how far off it may be, apart from the acceptance."""
    plain = doubts(serving, concurrency, known_model=known_model)
    down, up = usual_range("drafter", known_model=known_model)
    doubt = Uncertainty(max(down, plain.down), max(up, plain.up), plain.why)
    doubt.why.append("drafting")
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

    A step verifies the drafted tokens with the request's own one, so it reads the experts that all
    of them choose, and takes `draft_ms` more for each drafted token; where the model's own head
    drafts, also the time of reading that and the output layer.

    Args:
        drafted: tokens drafted in a step.
        acceptance: of each position, given the ones before; empty gives a range.
        accepted_share: of all drafts, instead of `acceptance`, as vLLM's metrics report it.

    Raises:
        UsageError: a count or a rate that cannot be.
    """
    constants = constants or Constants()
    gained = _gained(drafted, acceptance, accepted_share)
    usual = known(serving, constants, "drafter")
    doubt = _doubts(serving, concurrency, known_model=usual is not None)
    verified = step(serving, context, concurrency, sharing=constants.sharing, drafted=drafted)
    over_switch(doubt, serving, verified, constants)
    is_known = len(set(gained)) == 1
    if not is_known:
        doubt.why.append("an acceptance that was not measured")
    seconds = drafting_seconds(serving, context, drafted, concurrency, constants) / (usual or 1.0)
    best = gained[0] if is_known else 1 + drafted
    roofline = best / shortest(serving, context, concurrency, constants)
    speeds = [min(tokens / seconds, roofline) for tokens in gained]
    ranges = [doubt.around(speed, roofline, constants, serving.tp) for speed in speeds]
    request = Estimate(speeds[0], ranges[1].low, ranges[2].high, roofline)
    basis = doubt.text(constants.basis)
    plain = step(serving, context, concurrency, sharing=constants.sharing)
    slower = drafting_seconds(serving, context, drafted, concurrency, constants)
    gain = gained[0] * step_seconds(serving, plain, constants) / slower
    return Speculative(request, request.times(concurrency), gained[0], gain, basis)


def drafting_seconds(
    serving: Serving, context: float, drafted: int, concurrency: int, constants: Constants
) -> float:
    """Return how long a step with drafted tokens is expected to take."""
    one = step(serving, context, concurrency, sharing=constants.sharing, drafted=drafted)
    head = draft_read(serving) / (constants.bandwidth * constants.eta_dense)
    return step_seconds(serving, one, constants) + drafted * (constants.draft_ms / 1e3 + head)


def request_speed(
    recipe: Recipe,
    serving: Serving,
    *,
    context: float = CONTEXT,
    constants: Constants | None = None,
) -> Estimate:
    """Tokens/s of one request that is alone, with the recipe's drafter when it has one."""
    drafter = recipe.drafter
    if drafter is None:
        return decode(serving, context, constants=constants).request
    return speculative(
        serving, context, drafter.tokens, drafter.acceptance, constants=constants
    ).request
