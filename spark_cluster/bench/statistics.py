"""Tests of whether two measurements differ, and by how much.

The method is Welch's t test on the logarithms of the values, one value a run (source: welch-1947).
Logarithms, because speeds differ by factors: the difference of their means is the logarithm of the
ratio of the geometric means, and its confidence interval becomes one of the ratio. Welch's, because
two servers need not scatter alike.

A verdict needs all of these:

- at least 5 runs on each side;
- a ratio farther from 1 than the floor: 5 % with one request at a time, 30 % with several, as whole
  campaigns on two alike machines differed by as much (source: measured-on-two-sparks);
- significance at 1 % after Holm's correction for the number of comparisons (source: holm-1979);
- the rank test of Mann and Whitney at 5 %, which a single run far off does not lead astray (source:
  mann-whitney-1947).

"Same" needs the whole interval to be within the floor; what is neither is too noisy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Literal

from spark_cluster.config.schema import Document, Hidden, PrintedAs
from spark_cluster.errors import Failed, install_extra

Verdict = Literal["better", "worse", "same", "too noisy", "too few runs"]

FEWEST_RUNS = 5
"""Runs on each side below which there is no verdict."""

LEVEL = 0.01
"""Chance of a verdict where there is no difference, of all comparisons together."""

RANK_LEVEL = 0.05
"""Level of the rank test, which with 5 runs on each side cannot go below 0.008."""

CONFIDENCE = 0.95
"""Of the interval that is shown."""

FLOOR_ALONE = 0.05
"""Share below which a difference is not called with one request at a time."""

FLOOR_SEVERAL = 0.30
"""The same with several requests at a time, or an open loop."""

ALIKE = 1e-9
"""Spread of logarithms below which values are the same to a computer."""

MOST = 700.0
"""Logarithm of the largest ratio that is shown; a number cannot hold more than 709."""


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)


@dataclass(frozen=True)
class Difference(Document):
    """A compared to B.

    Attributes:
        ratio: B / A, of geometric means; None where a value is 0 or less.
        low, high: ends of the ratio's confidence interval; None where there is none.
        p: chance of a difference at least so large where there is none.
        n: runs of A and B.
        floor: share below which a difference is not called.
    """

    ratio: Annotated[float | None, PrintedAs(_finite)]
    low: Annotated[float | None, PrintedAs(_finite)]
    high: Annotated[float | None, PrintedAs(_finite)]
    p: Annotated[float, PrintedAs(_finite)]
    n: tuple[int, int]
    floor: float
    higher_is_better: Hidden[bool]
    verdict: Verdict


def require_scipy() -> None:
    """Check that scipy is installed.

    Raises:
        Failed: it is not.
    """
    if find_spec("scipy") is None:
        raise Failed(
            "comparing runs needs scipy, expected to be installed",
            hint=install_extra("bench"),
        )


def floor_of(concurrency: int) -> float:
    """Return the share below which a difference is not called.

    Args:
        concurrency: requests at a time; 0 for an open loop.
    """
    return FLOOR_ALONE if concurrency == 1 else FLOOR_SEVERAL


def differences(
    pairs: Sequence[tuple[Sequence[float], Sequence[float], float, bool]],
) -> list[Difference]:
    """Return the differences of all pairs, with verdicts that count how many they are.

    Args:
        pairs: values of A and of B, one a run; the floor; whether more is better.

    Raises:
        Failed: scipy is not installed.
    """
    require_scipy()
    found = [_difference(a, b, floor, more) for a, b, floor, more in pairs]
    tested = [
        index
        for index, one in enumerate(found)
        if min(one.n) >= FEWEST_RUNS and one.ratio is not None
    ]
    adjusted = holm([found[index].p for index in tested])
    for index, p in zip(tested, adjusted, strict=True):
        a, b, _, _ = pairs[index]
        found[index] = replace(found[index], p=p, verdict=_verdict(found[index], p, a, b))
    return found


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number, in the same order (Holm, 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected = [1.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = highest
    return corrected


def _difference(a: Sequence[float], b: Sequence[float], floor: float, more: bool) -> Difference:
    """Return a difference without a correction, and without a verdict where there are few runs."""
    n = (len(a), len(b))
    verdict: Verdict = "too few runs" if min(n) < FEWEST_RUNS else "too noisy"
    nothing = Difference(None, None, None, 1.0, n, floor, more, verdict)
    if min(n) < 1 or any(not (value > 0 and math.isfinite(value)) for value in (*a, *b)):
        return nothing
    x, y = [math.log(value) for value in a], [math.log(value) for value in b]
    between = math.fsum(y) / len(y) - math.fsum(x) / len(x)
    ratio = math.exp(between)
    if min(n) < 2:
        return replace(nothing, ratio=ratio)
    if max(max(x) - min(x), max(y) - min(y)) < ALIKE:
        p = 1.0 if abs(between) < ALIKE else 0.0
        return replace(nothing, ratio=ratio, low=ratio, high=ratio, p=p)
    from scipy.stats import ttest_ind

    with (
        warnings.catch_warnings()
    ):  # of one side that is alike: its spread is nothing, as it should
        warnings.simplefilter("ignore", RuntimeWarning)
        test = ttest_ind(y, x, equal_var=False)
    ends = test.confidence_interval(CONFIDENCE)
    low, high = (math.exp(min(float(end), MOST)) for end in (ends.low, ends.high))
    return replace(nothing, ratio=ratio, low=low, high=high, p=float(test.pvalue))


def _ranks(a: Sequence[float], b: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(a, b, alternative="two-sided", method="auto").pvalue)


def _verdict(one: Difference, p: float, a: Sequence[float], b: Sequence[float]) -> Verdict:
    """Return the verdict of a difference with at least `FEWEST_RUNS` runs.

    Args:
        p: corrected for the number of comparisons.
    """
    assert one.ratio is not None and one.low is not None and one.high is not None  # noqa: S101
    most = 1 + one.floor
    least = 1 / most
    if least < one.low and one.high < most:
        return "same"
    if least <= one.ratio <= most or p >= LEVEL or _ranks(a, b) >= RANK_LEVEL:
        return "too noisy"
    return "better" if (one.ratio > 1) == one.higher_is_better else "worse"
