"""Fits the constants of the speed formulas to the user's own runs.

Every formula is linear in the inverse of its efficiencies and in its fixed times, so each point is
one linear equation, and a least-squares fit with Huber weights (an outlier counts less the farther
off it is) is enough. A constant that the points do not tell apart from the others stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spark_cluster.errors import Failed, UsageError
from spark_cluster.planning.speed import decode as decoding
from spark_cluster.planning.speed import prefill as prefilling
from spark_cluster.planning.speed.constants import LIMITS, SCHEMA, Constants
from spark_cluster.planning.speed.serving import Serving

DISTINCT = 0.05
"""A constant is fitted when at least this share of what it explains is not explained by those
fitted before it; with less, noise decides."""

STRANGE = 3.0
"""Points this many times off are not of the model, quantisation or TP that the user named."""

HUBER = 0.05
"""Relative error from which on a point counts less."""

ROUNDS = 50

MINOR = frozenset({"eta_kv", "attention_tflops"})
"""Constants that noise in a few points can drive anywhere."""


@dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes:
        metric: decode_tok_s of one request, tokens/s; ttfr_ms of one request alone, ms.
        value: what was measured.
        context: tokens in the cache: while decoding, in the middle of the answer; for a prefill,
            those before the prompt.
        prompt: new tokens of the prompt; for a prefill only.
        concurrency: requests at a time.
        label: where it comes from, for messages.
    """

    serving: Serving
    metric: Literal["decode_tok_s", "ttfr_ms"]
    value: float
    context: float = 0.0
    prompt: int = 0
    concurrency: int = 1
    label: str = ""

    @property
    def seconds(self) -> float:
        """The time that the formulas predict."""
        return 1 / self.value if self.metric == "decode_tok_s" else self.value / 1e3

    def predicted(self, constants: Constants) -> float:
        """That time by the formula, seconds."""
        moe = self.serving.geometry.is_moe
        if self.metric == "decode_tok_s":
            step = decoding.step(self.serving, self.context, self.concurrency)
            return step.seconds(moe, constants)
        return prefilling.expected_seconds(self.serving, self.prompt, int(self.context), constants)


@dataclass(frozen=True)
class Calibration:
    """What a fit gave.

    Attributes:
        fitted: names of the constants that the points decide.
        kept: the others that the points have to do with, and why they stay.
        before: mean absolute relative error with the constants that were there before.
        after: the same with the fitted ones.
        left_out: the same of each point by a fit without it; None when too few points are left.
    """

    constants: Constants
    fitted: tuple[str, ...]
    kept: Mapping[str, str]
    points: int
    before: float
    after: float
    left_out: float | None

    def document(self) -> dict[str, object]:
        """The content of a calibration file."""
        usual, values = Constants().document(), self.constants.document()
        return {
            "schema": SCHEMA,
            "constants": {n: round(v, 6) for n, v in values.items() if v != usual[n]},
            "kept": dict(self.kept),
            "points": self.points,
            "mean_error": {
                "before": round(self.before, 4),
                "after": round(self.after, 4),
                "left_one_out": None if self.left_out is None else round(self.left_out, 4),
            },
        }


@dataclass(frozen=True)
class _Term:
    """One constant in the equations: its column, and between it and the coefficient."""

    name: str
    column: Callable[[Point], float]
    inverse: bool
    scale: float = 1.0

    def coefficient(self, constants: Constants) -> float:
        value = float(getattr(constants, self.name))
        return self.scale / value if self.inverse else value * self.scale

    def value(self, coefficient: float) -> float:
        if not self.inverse:
            return coefficient / self.scale
        return self.scale / coefficient if coefficient > 0 else math.inf


def is_read_bound(point: Point, constants: Constants | None = None) -> bool:
    """Whether a prefill is so short that reading the weights decides; it tells nothing then of how
    fast the chip computes."""
    if point.metric != "ttfr_ms":
        return False
    constants = constants or Constants()
    todo = prefilling.work(point.serving, point.prompt, int(point.context))
    computed = todo.seconds(point.serving.geometry.is_moe, constants)
    return computed < point.predicted(constants)


def calibrate(points: Sequence[Point], constants: Constants | None = None) -> Calibration:
    """Fits what the points identify.

    Args:
        constants: where to start from and what stays; ours when not given.

    Raises:
        UsageError: there are too few points, or they contradict what they are said to be.
        Failed: no sensible constants describe them.
    """
    start = constants or Constants()
    if len(points) < 2:
        raise UsageError(
            f"found {len(points)} usable points, expected at least 2",
            hint="run with several prompt sizes, depths or concurrencies",
        )
    _must_be_plausible(points, start)
    terms, kept = _identified(points, start)
    fit, terms, none = _sensible(points, terms, start, kept)
    return Calibration(
        constants=_own_link(fit) if "allreduce_us" in (t.name for t in terms) else fit,
        fitted=(*(term.name for term in terms), *none),
        kept=kept,
        points=len(points),
        before=mean_error(points, start),
        after=mean_error(points, fit),
        left_out=_leave_one_out(points, terms, fit),
    )


def _sensible(
    points: Sequence[Point], terms: list[_Term], start: Constants, kept: dict[str, str]
) -> tuple[Constants, list[_Term], list[str]]:
    """A fit whose constants can be: with the terms that decide it, and the times that are none.

    A time below none is none; the share of the bandwidth that reading the cache reaches stays as
    it was when the points ask for what cannot be; of the others that is an error.
    """
    fit = _fit(points, terms, start)
    none: list[str] = []
    for term, value in _outside(fit, terms):
        if not term.inverse and value < 0:
            start = replace(start, **{term.name: 0.0})  # type: ignore[arg-type]
            none.append(term.name)
        elif term.name in MINOR:
            kept[term.name] = f"the points ask for {value:.3g}, which cannot be"
        else:
            raise _strange(term.name, value)
    if none or any(term.name in kept for term in terms):
        terms = [term for term in terms if term.name not in (*none, *kept)]
        fit = _fit(points, terms, start)
        for term, value in _outside(fit, terms):
            raise _strange(term.name, value)
    return fit, terms, none


def _strange(name: str, value: float) -> Failed:
    return Failed(
        f"no sensible constants describe these points: they ask for {name} = {value:.3g}",
        hint="check that --recipe or --model, --quantization and --tp say what was run",
    )


def _own_link(constants: Constants) -> Constants:
    """The link is the user's own then: what others saw of theirs says no more how far off it is."""
    usual = constants.allreduce_us
    return replace(constants, allreduce_low_us=0.75 * usual, allreduce_high_us=1.25 * usual)


def mean_error(points: Iterable[Point], constants: Constants) -> float:
    """Mean absolute error of the predicted times, as a share of the measured ones."""
    errors = [abs(point.predicted(constants) / point.seconds - 1) for point in points]
    return sum(errors) / len(errors)


def _must_be_plausible(points: Sequence[Point], constants: Constants) -> None:
    for point in points:
        if not math.isfinite(point.value) or point.value <= 0:
            raise UsageError(f"{point.label}: found {point.value}, expected a number above 0")
    ratios = sorted(point.predicted(constants) / point.seconds for point in points)
    middle = ratios[len(ratios) // 2]
    if not 1 / STRANGE <= middle <= STRANGE:
        how = f"{middle:.3g} times as fast" if middle > 1 else f"{1 / middle:.3g} times as slow"
        raise UsageError(
            f"the runs are {how} as this model can be on a Spark",
            hint="check that --recipe or --model, --quantization and --tp say what was run, and "
            "that it ran on a Spark",
        )


def _identified(
    points: Sequence[Point], constants: Constants
) -> tuple[list[_Term], dict[str, str]]:
    """The constants that the points tell apart, and why the others stay."""
    chosen: list[_Term] = []
    kept: dict[str, str] = {}
    basis: list[list[float]] = []
    for term in _terms(points):
        column = [
            term.column(point) * term.coefficient(constants) / point.seconds for point in points
        ]
        size = math.sqrt(sum(x * x for x in column))
        if size == 0:
            continue
        rest = column
        for other in basis:
            share = sum(x * y for x, y in zip(rest, other, strict=True))
            rest = [x - share * y for x, y in zip(rest, other, strict=True)]
        left = math.sqrt(sum(x * x for x in rest))
        # What it explains has to differ between points, and to be more than their noise.
        if left < DISTINCT * size or left / math.sqrt(len(points)) < DISTINCT / 5:
            kept[term.name] = "the points do not tell it apart from the others"
        elif len(chosen) + 1 >= len(points):
            kept[term.name] = "there are too few points for it"
        else:
            chosen.append(term)
            basis.append([x / left for x in rest])
    return chosen, kept


def _terms(points: Sequence[Point]) -> list[_Term]:
    """All constants that can be fitted, those first that explain most."""
    bandwidth = Constants().bandwidth

    def decoded(what: Callable[[decoding.Step], float]) -> Callable[[Point], float]:
        def column(point: Point) -> float:
            if point.metric != "decode_tok_s":
                return 0.0
            return what(decoding.step(point.serving, point.context, point.concurrency))

        return column

    def weights(moe: bool) -> Callable[[Point], float]:
        read = decoded(lambda step: step.weights / bandwidth)
        return lambda point: read(point) if point.serving.geometry.is_moe is moe else 0.0

    def prefilled(
        what: Callable[[prefilling.Work], float], moe: bool | None
    ) -> Callable[[Point], float]:
        def column(point: Point) -> float:
            if point.metric != "ttfr_ms" or moe not in (None, point.serving.geometry.is_moe):
                return 0.0
            todo = prefilling.work(point.serving, point.prompt, int(point.context))
            return what(todo) / 1e12 / todo.tp

        return column

    reading = [_Term("eta_dense", weights(False), True), _Term("eta_moe", weights(True), True)]
    adding = [_Term("allreduce_us", decoded(lambda step: step.allreduces), False, 1e-6)]
    single = any(p.serving.tp == 1 for p in points if p.metric == "decode_tok_s")
    return [
        *(reading + adding if single else adding + reading),
        _Term("eta_kv", decoded(lambda step: step.cache / bandwidth), True),
        _Term("layer_ms", decoded(lambda step: step.layers), False, 1e-3),
        _Term("prefill_tflops", prefilled(lambda work: work.fast, False), True),
        _Term("prefill_moe_tflops", prefilled(lambda work: work.fast, True), True),
        _Term("attention_tflops", prefilled(lambda work: work.attention, None), True),
    ]


def _fit(points: Sequence[Point], terms: Sequence[_Term], start: Constants) -> Constants:
    """Least squares of relative errors, reweighted until outliers count as little as they should.

    Coefficients are in units of what they were before, so all are near one.
    """
    if not terms:
        return start
    scale = [term.coefficient(start) for term in terms]
    rows, goals = [], []
    for point in points:
        row = [term.column(point) * s for term, s in zip(terms, scale, strict=True)]
        rows.append([x / point.seconds for x in row])
        goals.append(1 - (point.predicted(start) - sum(row)) / point.seconds)
    factors = [1.0] * len(points)
    found = [1.0] * len(terms)
    for _ in range(ROUNDS):
        previous, found = found, _solve(rows, goals, factors)
        residuals = [
            abs(goal - sum(x * c for x, c in zip(row, found, strict=True)))
            for row, goal in zip(rows, goals, strict=True)
        ]
        factors = [1.0 if r <= HUBER else HUBER / r for r in residuals]
        if max(abs(a - b) for a, b in zip(previous, found, strict=True)) < 1e-9:
            break
    values = {t.name: t.value(c * s) for t, c, s in zip(terms, found, scale, strict=True)}
    return replace(start, **values)  # type: ignore[arg-type]


def _solve(rows: list[list[float]], goals: list[float], factors: list[float]) -> list[float]:
    """The normal equations, by elimination with pivots; a few unknowns at most."""
    size = len(rows[0])
    matrix = [
        [
            sum(f * row[i] * row[j] for f, row in zip(factors, rows, strict=True))
            for j in range(size)
        ]
        + [sum(f * row[i] * goal for f, row, goal in zip(factors, rows, goals, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if matrix[i][i] == 0:
            raise Failed("the points do not decide the constants", hint="add runs that differ more")
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]


def _outside(constants: Constants, terms: Iterable[_Term]) -> list[tuple[_Term, float]]:
    """Fitted constants that cannot be."""
    found = []
    for term in terms:
        value, (low, high) = float(getattr(constants, term.name)), LIMITS[term.name]
        if not low <= value <= high:
            found.append((term, value))
    return found


def _leave_one_out(
    points: Sequence[Point], terms: Sequence[_Term], start: Constants
) -> float | None:
    """Mean error of each point predicted by a fit to the others."""
    if len(points) - 1 < len(terms):
        return None
    errors = []
    for i, point in enumerate(points):
        try:
            fit = _fit([*points[:i], *points[i + 1 :]], terms, start)
        except Failed:  # this point alone decides one of the constants
            return None
        errors.append(mean_error([point], fit))
    return sum(errors) / len(errors)
