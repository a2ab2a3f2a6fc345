"""Two runs cell by cell: only what was measured alike, and why the rest was not compared.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, Literal

from spark_cluster.bench.expansion import key_id
from spark_cluster.bench.record import CellKey, CellResult, MetricName, NodeRecord, Record, Setup
from spark_cluster.config.schema import Document, Flat, Hidden, PrintedAs, derived, printed
from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.models.naming import table
from spark_cluster.node.output import counted
from spark_cluster.plan.calibrate import require_libraries

# Tests of whether two measurements differ, and by how much.

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
    require_libraries("comparing runs", "bench", "scipy")
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
    times = range(len(values), 0, -1)
    scaled = (min(1.0, count * values[at]) for count, at in zip(times, order, strict=True))
    corrected = dict(zip(order, accumulate(scaled, max), strict=True))
    return [corrected[at] for at in range(len(values))]


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


_METRICS = table("metrics", "bench")

HEADLINES: tuple[MetricName, ...] = tuple(_METRICS["compared"])
"""Metrics that are compared, the most telling first."""

HIGHER_IS_BETTER = frozenset(_METRICS["higher_is_better"])
"""Metrics of which more is better; of the others (times) less is."""

_COMPARED = table("compared", "bench")

SETUP_FIELDS: dict[str, str] = _COMPARED["setup"]
"""What must be alike of two servers, and its name in a reason."""

LONGEST = 60
"""Characters of a changed value that is shown; of longer ones only the name is."""


@dataclass(frozen=True)
class Row(Document):
    """A metric of a cell in both runs.

    Attributes:
        a, b: means.
        variants: what differs from the recipe, in A and in B.
    """

    key: CellKey
    setup: Hidden[Setup]
    metric: MetricName
    a: float
    b: float
    difference: Flat[Difference]
    variants: tuple[str, str]
    setup_id = derived(str, "setup.id", key="setup")


@dataclass(frozen=True)
class NotComparable:
    """A cell of one run that was left out.

    Attributes:
        side: `A` or `B`.
    """

    side: str
    cell: str
    reason: str


@dataclass(frozen=True)
class Comparison(Document):
    """The result of comparing two runs.

    Attributes:
        changed: what else differs between the runs, such as the image: B's is what is judged.
    """

    a: str
    b: str
    rows: tuple[Row, ...]
    not_comparable: tuple[NotComparable, ...]
    changed: tuple[str, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """Return how many rows have a verdict."""
        return sum(row.difference.verdict == verdict for row in self.rows)

    @printed
    def regressed(self) -> bool:
        """True if something is worse in B."""
        return self.count("worse") > 0

    @printed
    def summary(self) -> str:
        """The verdict in a line."""
        if not self.rows:
            return "nothing could be compared"
        names: tuple[Verdict, ...] = ("worse", "better", "same", "too noisy", "too few runs")
        parts = [f"{self.count(name)} {name}" for name in names if self.count(name)]
        cells = len({(row.setup.id, row.key) for row in self.rows})
        return f"{', '.join(parts)} (figures of {counted(cells, 'cell')})"


@dataclass
class _Measured:
    """The cells of one setup and load: a pair is measured in turns, which are put together."""

    setup: Setup
    key: CellKey
    cells: list[CellResult] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.cells[0].id

    def failed(self, side: str) -> str:
        bad = (cell.reason or cell.status for cell in self.cells if cell.status != "ok")
        return "".join(f"failed in {side}: {why}" for why in list(bad)[:1])

    def values(self, name: MetricName) -> tuple[float, ...]:
        """Return a value for each run; a mean stands for one run where they were not kept."""
        metrics = [cell.metrics[name] for cell in self.cells if name in cell.metrics]
        return tuple(value for metric in metrics for value in metric.values or (metric.mean,))


def compare(a: Record, b: Record, metrics: Sequence[MetricName] = HEADLINES) -> Comparison:
    """Compare what two runs measured alike: B is judged against A.

    Alike are model and revision, quantization, type of the KV cache, engine, tensor-parallel size,
    replicas, load generator with its version, latency mode, prefix caching, and the load.

    Raises:
        Failed: scipy is not installed.
    """
    ours, theirs = _measured(a), _measured(b)
    tool = _unlike_tools(a, b)
    partners = {} if tool else _partners(ours, theirs)
    by_place = {(one.setup.id, one.key): one for one in theirs}
    pairs, left_out = [], []
    for one in ours:
        other = by_place.get((partners.get(one.setup.id, ""), one.key))
        if other is None:
            reason = tool or _why(one, theirs, partners, "A")
        else:
            by_place.pop((other.setup.id, other.key))
            reason = "; ".join(filter(None, (one.failed("A"), other.failed("B"))))
        if reason:
            left_out.append(NotComparable("A", one.id, reason))
        elif other is not None:
            pairs.append((one, other))
    backwards = {partner: setup for setup, partner in partners.items()}
    left_out += [
        NotComparable("B", other.id, tool or _why(other, ours, backwards, "B"))
        for other in by_place.values()
    ]
    left_out += [*_without_server(a, "A"), *_without_server(b, "B")]
    rows = tuple(_rows(pairs, metrics))
    return Comparison(a.id, b.id, rows, tuple(left_out), tuple(_changed(a, b)))


def part_of(record: Record, setup: str) -> Record:
    """Return a run with one of its servers only, so that two servers of a run can be compared.

    Raises:
        UsageError: the run has no such server.
    """
    known = [one.id for one in record.setups]
    if setup not in known:
        raise UsageError(
            f"run {record.id} has no setup '{setup}'", hint=did_you_mean(setup, known, "setups")
        )
    return record.model_copy(
        update={
            "id": f"{record.id}#{setup}",
            "setups": tuple(one for one in record.setups if one.id == setup),
            "cells": tuple(cell for cell in record.cells if cell.setup == setup),
        }
    )


def _measured(record: Record) -> list[_Measured]:
    setups = {setup.id: setup for setup in record.setups}
    found: dict[tuple[str, CellKey], _Measured] = {}
    for cell in record.cells:
        if cell.setup in setups:
            new = _Measured(setups[cell.setup], cell.key)
            found.setdefault((cell.setup, cell.key), new).cells.append(cell)
    return list(found.values())


def _without_server(record: Record, side: str) -> Iterator[NotComparable]:
    """Yield the cells whose server was never brought up."""
    known = {setup.id for setup in record.setups}
    for cell in record.cells:
        if cell.setup not in known:
            yield NotComparable(side, cell.id, f"{cell.status} in {side}: {cell.reason}")


def _unlike_tools(a: Record, b: Record) -> str:
    """Return why two runs' load generators do not measure the same; empty where they do."""
    found = _unlike(vars(a.tool), vars(b.tool), _COMPARED["tool"])
    ours, theirs = a.tool.settings, b.tool.settings
    known = [name for name in _COMPARED["settings"] if name in ours and name in theirs]
    found += _unlike(ours, theirs, {name: name for name in known})
    return found[0] if found else ""


def _unlike(a: Mapping[str, Any], b: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """Return what differs, in words.

    Args:
        names: name of a value to its name in words.
    """
    differ = ((text, a[name], b[name]) for name, text in names.items() if a[name] != b[name])
    return [line for text, ours, theirs in differ for line in change(text, [ours], [theirs])]


def _unlike_setups(a: Setup, b: Setup) -> list[str]:
    return _unlike(vars(a), vars(b), SETUP_FIELDS)


def _partners(ours: list[_Measured], theirs: list[_Measured]) -> dict[str, str]:
    """Return each server of A with the one of B that is compared with it.

    The same variant comes first. Where each run has one server of its kind only, they are compared
    whatever their variants are: that is then what the user asks about.
    """
    left = {one.setup.id: one.setup for one in ours}
    right = {one.setup.id: one.setup for one in theirs}
    found: dict[str, str] = {}
    for setup in left.values():
        alike = [other for other in right.values() if not _unlike_setups(setup, other)]
        same = [other for other in alike if other.variant == setup.variant]
        kin = [other for other in left.values() if not _unlike_setups(setup, other)]
        same_recipe = [other for other in same if other.recipe == setup.recipe]
        chosen = same_recipe or same or (alike if len(alike) == len(kin) == 1 else [])
        if chosen and chosen[0].id not in found.values():
            found[setup.id] = chosen[0].id
    return found


def _why(one: _Measured, others: list[_Measured], partners: dict[str, str], side: str) -> str:
    """Return why a cell has no counterpart."""
    other_side = "B" if side == "A" else "A"
    if one.setup.id in partners:
        return f"{other_side} has no cell {key_id(one.key)} on such a server"
    if not others:
        return f"{other_side} has no cells"
    setups = [other.setup for other in others]
    pairs = [(one.setup, other) if side == "A" else (other, one.setup) for other in setups]
    if nearest := min((_unlike_setups(*pair) for pair in pairs), key=len):
        return "; ".join(nearest)
    variant = one.setup.variant or "the recipe as it is"
    return f"{other_side} has several servers of this kind, none of them with {variant}"


def _rows(
    pairs: Sequence[tuple[_Measured, _Measured]], metrics: Sequence[MetricName]
) -> Iterator[Row]:
    found = [
        (one, other, name, one.values(name), other.values(name))
        for one, other in pairs
        for name in metrics
        if one.values(name)
        and other.values(name)
        # With one request at a time a request's speed is that of all together.
        and not (name == "tg_tps_request" and one.key.concurrency == 1)
        and not (name == "e2e_ttft_ms" and one.values("ttfr_ms"))
    ]
    results = differences(
        [
            (a, b, floor_of(one.key.concurrency), name in HIGHER_IS_BETTER)
            for one, _, name, a, b in found
        ]
    )
    for (one, other, name, a, b), difference in zip(found, results, strict=True):
        variants = (one.setup.variant, other.setup.variant)
        means = sum(a) / len(a), sum(b) / len(b)
        yield Row(one.key, one.setup, name, *means, difference, variants)


# -- what else differs -----------------------------------------------------------------------------


def _changed(a: Record, b: Record) -> Iterator[str]:
    """Yield what differs besides the figures, such as `vllm: 0.22.1 in A, 0.23.0 in B`: it may be
    the cause, or the question."""
    for name in _COMPARED["changes"]:
        sides = [[getattr(setup, name) for setup in run.setups] for run in (a, b)]
        yield from change(name.replace("_", " "), *sides)
    joined = [
        [s.executor or ("none" if len(s.nodes) == 1 else "") for s in r.setups] for r in (a, b)
    ]
    yield from change("executor", *joined)
    yield from change("spark-cluster", [a.spark_cluster], [b.spark_cluster])
    yield from change("client", [a.client], [b.client])
    for name in [*NodeRecord.model_fields][1:]:  # after its name
        yield from change(name, *([getattr(n, name) for n in run.nodes] for run in (a, b)))
    for name in sorted({p for run in (a, b) for setup in run.setups for p in setup.versions}):
        sides = [[setup.versions.get(name) for setup in run.setups] for run in (a, b)]
        yield from change(name, *sides)


def change(
    name: str,
    a: Iterable[object],
    b: Iterable[object],
    *,
    sides: tuple[str, str] = ("in A", "in B"),
) -> Iterator[str]:
    """Yield that what two sides have of something differs, with what each has; of values that are
    too long only the name."""
    known = [{_text(value) for value in side if value not in ("", None, (), {})} for side in (a, b)]
    if known[0] == known[1]:
        return
    shown = [", ".join(sorted(side)) or "not known" for side in known]
    if max(map(len, shown)) > LONGEST:
        yield name
    else:
        yield f"{name}: {shown[0]} {sides[0]}, {shown[1]} {sides[1]}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return " ".join(f"{name}={value[name]}" for name in sorted(value))
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
