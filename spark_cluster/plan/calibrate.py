"""Fits the constants of the speed formulas to the user's own runs.

Every formula is linear in the inverse of its efficiencies and in its fixed times, so each point is
one linear equation of shares of its time: what a constant explains of it is how the formula changes
with the constant. A constant stays as it is when the points do not tell it
apart from the others, or when points that are left out are predicted better without fitting it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Literal

from typing_extensions import TypedDict

from spark_cluster.config.schema import Document, Hidden, PrintedAs, Rounded, derived, printed
from spark_cluster.errors import Failed, UsageError, install_extra
from spark_cluster.plan import prefill, speed
from spark_cluster.plan.estimate import LIMITS, SCHEMA, Constants
from spark_cluster.plan.serving import ServingSetup

# Least squares that outliers do not lead astray, for a few unknowns and some dozens of equations.
#
# Each equation says that `fixed + row . coefficients` should be one, and the coefficients are in
# units of what they are thought to be, so all are near one too.
#
# numpy and scipy are in the extra `calibrate` and are imported late: nothing else needs them.

HUBER = 0.05
"""Error from which on an equation counts less, the less the farther off it is."""

TOLERANCE = 1e-12
"""Relative change of the coefficients and of the cost at which a fit ends."""

DEPENDENT = 1e-7
"""Share of the largest singular value below which columns count as linearly dependent."""


class Undecided(Failed):
    """The equations do not decide the coefficients."""

    def __init__(self) -> None:
        super().__init__("the points do not decide the constants", hint="add runs that differ more")


def require_libraries(doing: str, extra: str, *names: str) -> None:
    """Check that libraries are installed.

    Args:
        doing: what needs them, as a message begins.
        extra: that they are in.

    Raises:
        Failed: they are not.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise Failed(
            f"{doing} needs {' and '.join(missing)}, expected to be installed",
            hint=install_extra(extra),
        )


@dataclass(frozen=True)
class System:
    """The equations.

    Attributes:
        rows: of each equation, a figure for each coefficient.
        fixed: of each equation, what does not depend on them.
    """

    rows: Sequence[Sequence[float]]
    fixed: Sequence[float]

    def error(self, number: int, coefficients: Sequence[float]) -> float:
        """Return how far an equation is off."""
        pairs = zip(self.rows[number], coefficients, strict=True)
        return self.fixed[number] + sum(x * c for x, c in pairs) - 1

    def unexplained(self, column: int, others: Sequence[int]) -> float:
        """Return the length of what a column has beyond all combinations of the others."""
        import numpy as np

        rows = np.array(self.rows)
        known = rows[:, list(others)]
        best = np.linalg.lstsq(known, rows[:, column], rcond=None)[0]
        return float(np.linalg.norm(rows[:, column] - known @ best))

    def fit(
        self, active: Sequence[int], base: Sequence[float], without: int | None = None
    ) -> list[float]:
        """Return the coefficients that fit best.

        Args:
            active: numbers of the coefficients to fit; the others stay as in `base`.
            without: number of an equation to leave out.

        Raises:
            Undecided: they are not decided.
        """
        if not active:
            return list(base)
        import numpy as np
        from scipy.optimize import least_squares

        used = [i for i in range(len(self.rows)) if i != without]
        start = [0.0 if k in active else c for k, c in enumerate(base)]
        rows = np.array([[self.rows[i][k] for k in active] for i in used])
        goals = np.array([-self.error(i, start) for i in used])
        plain, _, rank, _ = np.linalg.lstsq(rows, goals, rcond=DEPENDENT)
        if rank < len(active):
            raise Undecided
        tolerances = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
        found = least_squares(
            lambda c: rows @ c - goals, plain, lambda _: rows,
            loss="huber", f_scale=HUBER, **tolerances,
        ).x  # fmt: skip
        fitted = dict(zip(active, map(float, found), strict=True))
        return [fitted.get(k, c) for k, c in enumerate(base)]

    def left_out_error(self, active: Sequence[int], base: Sequence[float]) -> float | None:
        """Return the mean error of each equation by a fit to the others; None with too few.

        A coefficient that is in one equation only stays as in `base` when that one is left out.
        """
        count = len(self.rows)
        if count - 1 < len(active) or count < 2:
            return None
        total = 0.0
        for i in range(count):
            others = [k for k in active if any(self.rows[j][k] for j in range(count) if j != i)]
            try:
                total += abs(self.error(i, self.fit(others, base, i)))
            except Undecided:
                return None
        return total / count


DISTINCT = 0.05
"""A constant is fitted when at least this share of what it explains is not explained by those
fitted before it; with less, noise decides."""

STRANGE = 3.0
"""Points this many times off are not of the model, quantization or TP that the user named."""

FAR = 0.25
"""A point whose time the fit still misses by more than this is worth a look by the user."""

MINOR = frozenset({"eta_kv", "attention_tflops", "flash_tflops"})
"""Constants that noise in a few points can drive anywhere."""

READING = ("eta_dense", "eta_moe")
LINK = ("allreduce_us", "allreduce_socket_us")
FURTHER = (
    "eta_kv", "step_ms", "prefill_tflops", "prefill_moe_tflops", "attention_tflops", "flash_tflops"
)  # fmt: skip
"""Constants that can be fitted; of decoding, those of reading and the link explain most."""

TIMES = frozenset({*LINK, "step_ms"})
"""Constants that are their own coefficients; of the others that is one over the constant."""

CHANGE = 1e-3
"""Change of a coefficient by which its share of a point's time is found, as a share of it."""


@dataclass(frozen=True)
class Point:
    """A measurement.

    Attributes:
        metric: decode_tok_s of one request, tokens/s; ttfr_ms of one request alone, ms.
        value: what was measured.
        context: tokens in the cache: while decoding, in the middle of the answer; for a prefill,
            those before the prompt.
        prompt: new tokens of the prompt; for a prefill only.
        concurrency: requests at a time.
        label: where it comes from, for messages.
    """

    serving: ServingSetup
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

    def step(self, constants: Constants) -> speed.DecodeStep:
        """Return what a step of it reads."""
        sharing = constants.sharing
        return speed.step(self.serving, self.context, self.concurrency, sharing=sharing)

    def predicted(self, constants: Constants) -> float:
        """Return the time by the formula, seconds."""
        if self.metric == "decode_tok_s":
            return self.step(constants).seconds(constants)
        return prefill.expected_seconds(self.serving, self.prompt, int(self.context), constants)


Share = Annotated[float, Rounded(4)]


class MeanErrors(TypedDict):
    """Mean absolute relative errors; see `Calibration`."""

    before: Share
    after: Share
    left_one_out: Annotated[float | None, Rounded(4)]


def _changed(constants: Constants) -> dict[str, float]:
    usual = Constants().figures()
    return {n: round(v, 6) for n, v in constants.figures().items() if v != usual[n]}


@dataclass(frozen=True)
class Calibration(Document):
    """The result of a fit.

    Attributes:
        fitted: names of the constants that the points decide.
        kept: the others that the points have to do with, and why they stay.
        before: mean absolute relative error with the constants that were there before.
        after: the same with the fitted ones.
        left_out: the same of each point by a fit without it; None when too few points are left.
        far_off: points that the fit does not describe, as text.
        measured: names of the constants that were measured by themselves, without runs.
    """

    constants: Annotated[Constants, PrintedAs(_changed)]
    fitted: Hidden[tuple[str, ...]]
    kept: Mapping[str, str]
    points: int
    before: Hidden[float]
    after: Hidden[float]
    left_out: Hidden[float | None]
    far_off: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    schema = derived(str, lambda _: SCHEMA)

    @printed
    def mean_error(self) -> MeanErrors:
        """Its errors, as shares."""
        return {"before": self.before, "after": self.after, "left_one_out": self.left_out}


def _ratio(name: str, constants: Constants) -> float:
    """Return the coefficient of a constant in the equations, as a ratio to the published one."""
    ratio: float = getattr(constants, name) / getattr(Constants(), name)
    return ratio if name in TIMES else 1 / ratio


def _value(name: str, ratio: float) -> float:
    """Return the constant whose coefficient is this ratio to the published one."""
    usual = float(getattr(Constants(), name))
    if name in TIMES:
        return usual * ratio
    return usual / ratio if ratio > 0 else math.inf


def is_read_bound(point: Point, constants: Constants | None = None) -> bool:
    """Return whether a prefill is so short that reading the weights dominates; then it shows
    nothing of how fast the chip computes.
    """
    if point.metric != "ttfr_ms":
        return False
    constants = constants or Constants()
    todo = prefill.work(point.serving, point.prompt, int(point.context))
    return todo.is_read_bound(constants)


def calibrate(points: Sequence[Point], constants: Constants | None = None) -> Calibration:
    """Fit the constants that the points identify.

    Args:
        constants: where to start from and what stays; ours when not given.

    Raises:
        UsageError: there are too few points, or they contradict what they are said to be.
        Failed: no sensible constants describe them, or the extra `calibrate` is not installed.
    """
    require_libraries("fitting constants", "calibrate", "numpy", "scipy")
    start = constants or Constants()
    points = [point for point in points if not is_read_bound(point, start)]
    if len(points) < 2:
        raise UsageError(
            f"found {len(points)} usable points, expected at least 2",
            hint="run with several prompt sizes, depths or concurrencies",
        )
    _must_be_plausible(points, start)
    names = _names(points)
    base = [_ratio(name, start) for name in names]
    system = _system(points, names, base, start)
    active, kept = _identified(system, names, base)
    told = list(active)
    found = _sensible(system, names, active, base, kept)
    values = {names[k]: _value(names[k], found[k]) for k in told if names[k] not in kept}
    others = [base[k] if k in active else found[k] for k in range(len(names))]
    fit = replace(start, **values)  # type: ignore[arg-type]
    return Calibration(
        constants=_own_link(fit) if "allreduce_us" in values else fit,
        fitted=tuple(values),
        kept=kept,
        points=len(points),
        before=mean_error(points, start),
        after=mean_error(points, fit),
        left_out=system.left_out_error(active, others),
        far_off=tuple(_far_off(points, fit)),
    )


def _far_off(points: Iterable[Point], constants: Constants) -> Iterable[str]:
    for point in points:
        time = point.predicted(constants)
        if abs(time / point.seconds - 1) > FAR:
            decodes = point.metric == "decode_tok_s"
            expected = f"{1 / time:.1f} tok/s" if decodes else f"{time * 1e3:,.0f} ms"
            measured = f"{point.value:.1f}" if decodes else f"{point.value:,.0f}"
            yield f"{point.label}: {measured} measured, {expected} expected with this fit"


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


def _names(points: Sequence[Point]) -> list[str]:
    """Return all constants that can be fitted, those first that explain most."""
    single = any(p.serving.tp == 1 for p in points if p.metric == "decode_tok_s")
    return [*(READING + LINK if single else LINK + READING), *FURTHER]


def _system(
    points: Sequence[Point], names: Sequence[str], base: Sequence[float], start: Constants
) -> System:
    """The equations: of each point, the shares of its time that the constants explain."""
    usual = Constants()
    changed = [replace(usual, **{name: _value(name, 1 + CHANGE)}) for name in names]  # type: ignore[arg-type]
    rows, fixed = [], []
    for point in points:
        plain = point.predicted(usual)
        more = [point.predicted(constants) - plain for constants in changed]
        row = [each / CHANGE / point.seconds for each in more]
        rows.append(row)
        explained = sum(x * c for x, c in zip(row, base, strict=True))
        fixed.append(point.predicted(start) / point.seconds - explained)
    return System(rows, fixed)


def _identified(
    system: System, names: Sequence[str], base: Sequence[float]
) -> tuple[list[int], dict[str, str]]:
    """Numbers of the constants that the points tell apart, and why the others stay."""
    active: list[int] = []
    kept: dict[str, str] = {}
    count = len(system.rows)
    for k, name in enumerate(names):
        size = math.hypot(*(row[k] for row in system.rows))
        if size == 0:
            continue
        left = system.unexplained(k, active)
        # It has to differ from the others by more than the noise of the points, too.
        if left < DISTINCT * size or left / math.sqrt(count) < DISTINCT / 5:
            kept[name] = "the points do not separate it from the others"
        elif len(active) + 1 >= count:
            kept[name] = "there are too few points for it"
        else:
            active.append(k)
    _drop_what_misleads(system, names, active, base, kept)
    return active, kept


def _drop_what_misleads(
    system: System,
    names: Sequence[str],
    active: list[int],
    base: Sequence[float],
    kept: dict[str, str],
) -> None:
    """Leave alone what makes predictions of points worse that the fit has not seen."""
    for k in reversed(active[1:]):
        fewer = [other for other in active if other != k]
        whole, less = (system.left_out_error(numbers, base) for numbers in (active, fewer))
        if less is not None and (whole is None or less < whole):
            active.remove(k)
            kept[names[k]] = "points left out are predicted better without"


def _sensible(
    system: System,
    names: Sequence[str],
    active: list[int],
    base: Sequence[float],
    kept: dict[str, str],
) -> list[float]:
    """Coefficients whose constants can be.

    A time below none is none; one of little weight stays as it was when the points ask for what
    cannot be; of the others that is an error.
    """
    start = list(base)
    found = system.fit(active, start)
    for k, value in _outside(found, names, active):
        if names[k] in TIMES and value < 0:
            start[k] = 0.0
        elif names[k] in MINOR:
            kept[names[k]] = f"the points ask for {value:.3g}, which cannot be"
        else:
            raise _strange(names[k], value)
        active.remove(k)
    found = system.fit(active, start)
    for k, value in _outside(found, names, active):
        raise _strange(names[k], value)
    return found


def _strange(name: str, value: float) -> Failed:
    return Failed(
        f"no sensible constants describe these points: they ask for {name} = {value:.3g}",
        hint="check that --recipe or --model, --quantization and --tp say what was run",
    )


def _outside(
    found: Sequence[float], names: Sequence[str], active: Sequence[int]
) -> list[tuple[int, float]]:
    """Fitted constants that cannot be."""
    values = [(k, _value(names[k], found[k])) for k in active]
    limits = {k: LIMITS[names[k]] for k in active}
    return [(k, value) for k, value in values if not limits[k][0] <= value <= limits[k][1]]
