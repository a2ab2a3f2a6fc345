"""How good the predictions are: each family predicted by a fit that has seen none of its runs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.predictions.fit import Equations
from benchmarks.predictions.points import Measured, measured
from spark_cluster.plan.estimate import Constants, layout
from spark_cluster.plan.prefill import expected_seconds
from spark_cluster.plan.speed import (
    drafting_seconds,
    speculative,
    step,
    step_seconds,
)

SITUATIONS = ("decode", "users", "tp", "tp users", "drafter", "drafted", "prefill")
COVERAGE = 0.95
"""Share of the runs of a family not seen that its range is to hold."""
WIDEST = 0.6
"""No range is wider than a factor of 1.8 either way; with so few families it would say nothing."""
SHRINK = 0.5
"""A correction by one run counts 1 / (1 + SHRINK), one by n runs n / (n + SHRINK)."""
ENOUGH = 10
"""With fewer points that are held out than these, they say nothing of a range."""
FEW = 4
"""With fewer runs than these there is no range of their own for models that were measured."""


@dataclass(frozen=True)
class Outcome:
    """A point and its prediction.

    Attributes:
        ratio: measured over predicted, of speeds.
        low, high: the range, as a factor of the prediction.
    """

    measured: Measured
    ratio: float
    low: float = 0.0
    high: float = math.inf

    @property
    def error(self) -> float:
        """Predicted over measured speed, less one."""
        return 1 / self.ratio - 1

    @property
    def covered(self) -> bool:
        """The measured speed lies in the range."""
        return self.low <= self.ratio <= self.high


def seconds(one: Measured, constants: Constants) -> float:
    """Return the time that the formulas give, without what is known of the model itself."""
    point, serving = one.point, one.serving
    if one.situation == "prefill":
        return expected_seconds(serving, point.prompt, point.cached, constants)
    if one.situation == "drafter":
        drafted = one.run.drafted
        return drafting_seconds(serving, point.context, drafted, point.users, constants)
    cost = step(serving, point.context, point.users, sharing=constants.sharing)
    return step_seconds(serving, cost, constants)


ALIKE = {
    "drafter": ("drafter", "users"),
    "tp users": ("tp users", "tp", "users"),
}
"""Situations whose errors are taken together, as there are few runs of the first: drafted tokens
choose experts as those of several users do."""


def of_situation(found: Iterable[Outcome], situation: str) -> list[Outcome]:
    """Return the points that the range of a situation rests on."""
    alike = ALIKE.get(situation, (situation,))
    return [one for one in found if one.measured.situation in alike]


def group(situation: str) -> str:
    """Name what shares one correction: the number of users changes none."""
    return {"users": "decode", "tp users": "tp"}.get(situation, situation)


def outcomes(points: Sequence[Measured], constants: Constants) -> list[Outcome]:
    """Return measured over predicted of each point."""
    return [
        _drafted(one, constants)
        if one.situation == "drafted"
        else Outcome(one, seconds(one, constants) / one.seconds)
        for one in points
    ]


def _drafted(one: Measured, constants: Constants) -> Outcome:
    """Return a point with a drafter whose acceptance is not said, with the range that users see."""
    point, run = one.point, one.run
    method = "mtp" if run.own_head else ""
    found = speculative(
        one.serving,
        point.context,
        run.drafted,
        concurrency=point.users,
        constants=constants,
        method=method,
    ).request
    low, high = found.low / found.expected, found.high / found.expected
    return Outcome(one, one.value / found.expected, low, high)


def corrections(found: Iterable[Outcome]) -> dict[str, float]:
    """Return how much faster than the formulas each model is, drawn towards 1."""
    logs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        m = one.measured
        if m.situation == "drafted":
            continue
        key = f"{layout(m.serving)} {group(m.situation)}"
        logs[key][m.run.id].append(math.log(one.ratio))
    made = {}
    for key, runs in sorted(logs.items()):
        means = [statistics.fmean(values) for values in runs.values()]
        share = len(means) / (len(means) + SHRINK)
        made[key] = round(math.exp(share * statistics.fmean(means)), 3)
    return made


def corrected(found: Sequence[Outcome]) -> list[Outcome]:
    """Return the points of models that other runs measured too, corrected by these alone."""
    made = []
    for one in found:
        key = (layout(one.measured.serving), group(one.measured.situation))
        others = [
            other
            for other in found
            if other.measured.run.id != one.measured.run.id
            and other.measured.situation != "drafted"
            and (layout(other.measured.serving), group(other.measured.situation)) == key
        ]
        if others:
            (factor,) = corrections(others).values()
            made.append(Outcome(one.measured, one.ratio / factor))
    return made


def limits(found: Sequence[Outcome], held_out: Sequence[Outcome] = ()) -> tuple[float, float]:
    """Return the range that a run of a family not seen yet lies in, at COVERAGE.

    It is a prediction interval by Student's t for one more run, on the logarithm of the ratio: all
    points of a run count as one, and few runs make a wide range. Errors have longer tails than
    that assumes, so it also holds that share of the points as they are; and of those held out,
    where there are enough, because the formulas were chosen with the others in sight.
    """
    by_run: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in found:
        by_run[one.measured.family, one.measured.run.id].append(math.log(one.ratio) ** 2)
    squares = [statistics.fmean(values) for values in by_run.values()]
    families = len({family for family, _ in by_run})
    from scipy.stats import t

    tail = float(t.ppf((1 + COVERAGE) / 2, max(len(squares) - 1, 1)))
    spread = tail * math.sqrt(statistics.fmean(squares) * (1 + 1 / families))
    spread = max(spread, _holding(found))
    if len(held_out) >= ENOUGH:
        spread = max(spread, _holding(held_out))
    spread = min(spread, WIDEST)
    return math.exp(-spread), math.exp(spread)


def _holding(found: Sequence[Outcome]) -> float:
    """Return the logarithm of the ratio that COVERAGE of the points do not exceed."""
    sizes = sorted(abs(math.log(one.ratio)) for one in found)
    return sizes[math.ceil(COVERAGE * len(sizes)) - 1]


def ranges(other: Sequence[Outcome], known: Sequence[Outcome]) -> dict[str, dict[str, list[float]]]:
    """Return the ranges by situation, for models that were measured and for others.

    Args:
        other: each point predicted without its family, those held out included.
        known: points that were fitted to, corrected by other runs of their model.
    """
    made = {}
    for situation in SITUATIONS:
        if situation == "drafted":  # as with a drafter, and the published acceptance
            continue
        of = of_situation(other, situation)
        own = [o for o in known if group(o.measured.situation) == group(situation)]
        low, high = limits(*_apart(of))
        found = {"other": [round(low, 3), round(high, 3)]}
        few = len({o.measured.run.id for o in own}) < FEW
        near = (low, high) if few else limits(own)
        found["known"] = [round(max(near[0], low), 3), round(min(near[1], high), 3)]
        made[situation] = found
    return made


@dataclass(frozen=True)
class Evaluation:
    """The result of leaving out each family in turn.

    Attributes:
        left_out: every point, predicted without its family, with a range from other families.
        held_out: those of them that no fit ever saw.
        shipped: constants fitted to everything but what is held out.
        ranges, models: the content of `fitted.json`.
    """

    left_out: tuple[Outcome, ...]
    held_out: tuple[Outcome, ...]
    shipped: Constants
    ranges: Mapping[str, Mapping[str, Sequence[float]]]
    models: Mapping[str, float]

    def to_dict(self) -> dict[str, object]:
        """Return the content of `plan/data/fitted.json`."""
        return {"ranges": self.ranges, "models": self.models}


def evaluate(report: Callable[[str], None] = lambda _: None) -> Evaluation:
    """Fit without each family, compare, and fit to all that may be fitted to."""
    points = measured()
    equations = Equations(points)
    found: list[Outcome] = []
    for name in sorted({one.family for one in points}):
        report(name)
        fitted = equations.fit(lambda m, name=name: m.family != name and not m.run.held_out)  # type: ignore[misc]
        found += outcomes([one for one in points if one.family == name], fitted)
    left_out = [_with_range(one, found) for one in found]
    shipped = equations.fit(lambda m: not m.run.held_out)
    seen = [o for o in outcomes(points, shipped) if not o.measured.run.held_out]
    return Evaluation(
        tuple(left_out),
        tuple(one for one in left_out if one.measured.run.held_out),
        shipped,
        ranges(found, corrected(seen)),
        corrections(seen),
    )


def _with_range(one: Outcome, found: Sequence[Outcome]) -> Outcome:
    """Return a point with the range that runs of other families give."""
    if one.measured.situation == "drafted":
        return one
    others = [
        other
        for other in of_situation(found, one.measured.situation)
        if other.measured.family != one.measured.family
    ]
    low, high = limits(*_apart(others))
    return Outcome(one.measured, one.ratio, low, high)


def _apart(found: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Return the points that may be fitted to, and those held out."""
    held_out = [one for one in found if one.measured.run.held_out]
    return [one for one in found if not one.measured.run.held_out], held_out
