"""How many drafted tokens a model accepts: what is measured, else what was published."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from operator import mul
from typing import Any

from spark_cluster.errors import UsageError
from spark_cluster.models.naming import table

KINDS = ("mtp", "dflash", "dspark")
"""Kinds of drafters of which acceptance was published."""

AT_ONCE = ("dflash", "dspark")
"""Of these those that draft all tokens of a step in one pass; the others take one for each."""

ENOUGH = 8
"""Rows of a kind from which on its least and most say how far it varies."""

STEPS = 1 << 40
"""Between 0 and 1 in search of a rate: more than its digits."""


def kind_of(method: str) -> str:
    """Return the kind of a drafter by vLLM's name of the method; empty for one of no known kind.

    >>> kind_of("qwen3_next_mtp"), kind_of("dflash2"), kind_of("ngram")
    ('mtp', 'dflash', '')
    """
    return next((kind for kind in KINDS if kind in method.lower()), "")


@cache
def usual_acceptance(kind: str) -> tuple[float, float, float]:
    """Return the acceptance of a drafted token, given the ones before: the median of what was
    published for this kind of drafter, and the least and the most; those of all kinds where nothing
    was, or too little to know how far it varies.
    """
    rows = table("acceptance", "plan")["rows"]
    every = [_rate(row) for row in rows]
    own = [rate for rate, row in zip(every, rows, strict=True) if row["kind"] == kind]
    spread = own if len(own) >= ENOUGH else every
    return statistics.median(own or every), min(spread), max(spread)


def _rate(row: dict[str, Any]) -> float:
    """Return the one rate for every position that gives the accepted tokens of a row."""
    drafted = int(row["drafted"])
    accepted = sum(row["at"]) if "at" in row else drafted * float(row["share"])
    given = partial(tokens_per_step, drafted=drafted)
    return bisect_left(range(STEPS), 1 + accepted, key=lambda step: given([step / STEPS])) / STEPS


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


def gained(
    drafted: int, acceptance: Sequence[float], accepted_share: float | None, kind: str = ""
) -> tuple[float, float, float]:
    """Return the tokens that a step gives: expected, at least, at most.

    Args:
        kind: of the drafter, where neither `acceptance` nor `accepted_share` says it.

    Raises:
        UsageError: a count or a rate that cannot be.
    """
    if accepted_share is not None:
        tokens_per_step([accepted_share], drafted)
        known = 1 + drafted * accepted_share
    elif acceptance:
        known = tokens_per_step(acceptance, drafted)
    else:
        usual, least, most = (tokens_per_step([rate], drafted) for rate in usual_acceptance(kind))
        return usual, least, most
    return known, known, known
