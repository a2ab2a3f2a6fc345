"""The results of a run as the report looks at them, and the verdict.

Cells by setup and shape, against depth and load; how the run went, and which setup serves which
purpose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from spark_cluster.bench.compare import (
    CONFIDENCE,
    HIGHER_IS_BETTER,
    SETUP_FIELDS,
    differences,
    floor_of,
)
from spark_cluster.bench.record import CellKey, CellResult, Metric, MetricName, Record, Setup
from spark_cluster.bench.references import PredictedFigure, against_plan
from spark_cluster.bench.report.rendering import (
    decode_name,
    duration,
    factor,
    number,
    prefill_name,
    short,
    tokens,
)

Shape = tuple[int, int]
"""Prompt and output, tokens."""


@dataclass(frozen=True)
class PlotPoint:
    """A measured figure of a line in a plot."""

    x: float
    metric: Metric
    cell: CellResult


@dataclass(frozen=True)
class Results:
    """A record with the questions that a report asks of it."""

    record: Record

    @cached_property
    def setups(self) -> tuple[Setup, ...]:
        """The setups of which a cell tells something, in their order."""
        measured = {cell.setup for cell in self.record.cells}
        return tuple(setup for setup in self.record.setups if setup.id in measured)

    @cached_property
    def labels(self) -> dict[str, str]:
        """Return a label for each setup, by its id: short, and no two alike."""
        models = {setup.model for setup in self.record.setups}
        names = {s.id: _label(s, with_model=len(models) > 1) for s in self.record.setups}
        count = Counter(names.values())
        return {id: f"{name} · {id}" if count[name] > 1 else name for id, name in names.items()}

    def label(self, id: str) -> str:
        """Return the label of a setup; its id where the record does not have it."""
        return self.labels.get(id, id)

    @cached_property
    def by_setup(self) -> dict[str, tuple[CellResult, ...]]:
        """Cells of llama-benchy that went well, by setup, in the order of their shape."""
        found: dict[str, list[CellResult]] = defaultdict(list)
        for cell in self.record.cells:
            if cell.status == "ok" and cell.key.kind == "load" and not is_served(cell):
                found[cell.setup].append(cell)
        return {id: tuple(sorted(cells, key=_order)) for id, cells in found.items()}

    def cells(self, setup: Setup) -> tuple[CellResult, ...]:
        """Cells of llama-benchy that went well."""
        return self.by_setup.get(setup.id, ())

    @cached_property
    def shape(self) -> Shape | None:
        """The prompt and output that most of the plots are about.

        It is the one measured on most setups, then at most depths and loads, then the longest.
        """
        setups: dict[Shape, set[str]] = defaultdict(set)
        count: Counter[Shape] = Counter()
        for id, cells in self.by_setup.items():
            for cell in _plain(cells):
                setups[_shape(cell.key)].add(id)
                count[_shape(cell.key)] += 1
        return max(setups, key=lambda s: (len(setups[s]), count[s], s[1], s[0]), default=None)

    def at(self, setup: Setup, metric: MetricName, **fixed: int) -> list[PlotPoint]:
        """Figures of the shape that the plots are about.

        Args:
            fixed: `depth` or `concurrency`; the other one is the points' x, ascending.
        """
        along = "concurrency" if "depth" in fixed else "depth"
        found = {}
        for cell in _plain(self.cells(setup)):
            alike = all(getattr(cell.key, name) == value for name, value in fixed.items())
            if alike and _shape(cell.key) == self.shape and metric in cell.metrics:
                x = getattr(cell.key, along)
                found[x] = PlotPoint(x, cell.metrics[metric], cell)
        return [found[x] for x in sorted(found)]

    @cached_property
    def lowest_depth(self) -> int:
        """The depth that headlines and plots against load are about."""
        cells = [cell for cells in self.by_setup.values() for cell in _plain(cells)]
        return min((c.key.depth for c in cells if _shape(c.key) == self.shape), default=0)

    def at_lowest(self, setup: Setup, metric: MetricName) -> PlotPoint | None:
        """Return a figure with one request at a time at the lowest depth; None without one."""
        points = self.at(setup, metric, concurrency=1)
        return points[0] if points and points[0].x == self.lowest_depth else None

    @cached_property
    def predicted(self) -> list[PredictedFigure]:
        """The predictions of the plan that were measured."""
        measured = {setup.id for setup in self.setups}
        return [one for one in against_plan(self.record) if one.setup in measured]

    @cached_property
    def pairs(self) -> tuple[tuple[Setup, Setup], ...]:
        """Setups at TP=1, each with one of the same model and arguments at TP=2."""
        single = [setup for setup in self.setups if setup.replicas == 1]
        return tuple(
            (one, two)
            for one in single
            for two in single
            if one.tp == 1 and two.tp == 2 and _same_model(one, two)
        )

    def replicas_of(self, one: Setup) -> Setup | None:
        """The setup of the same recipe that runs one server on each of the two nodes."""
        replicas = (s for s in self.setups if s.tp == 1 and s.replicas == 2)
        return next((setup for setup in replicas if _same_model(setup, one)), None)


def is_served(cell: CellResult) -> bool:
    """Return True for a cell of `vllm bench serve`, whose figures are others."""
    return cell.key.request_rate is not None or "request_throughput" in cell.metrics


def speed_up(metric: MetricName, before: Metric, after: Metric) -> float | None:
    """Return how many times better the second is; None where a figure is not positive."""
    if before.mean <= 0 or after.mean <= 0:
        return None
    ratio = after.mean / before.mean
    return ratio if metric in HIGHER_IS_BETTER else 1 / ratio


def is_noise(ratio: float, concurrency: int) -> bool:
    """Tell whether identical runs differ as much as this."""
    return max(ratio, 1 / ratio) < 1 + floor_of(concurrency)


def _plain(cells: Iterable[CellResult]) -> Iterator[CellResult]:
    return (cell for cell in cells if not cell.key.context_prefill)


def _shape(key: CellKey) -> Shape:
    return key.prompt, key.output


def _order(cell: CellResult) -> tuple[int, ...]:
    key = cell.key
    return key.concurrency, key.prompt, key.output, key.depth, not key.context_prefill


def _label(setup: Setup, *, with_model: bool) -> str:
    parts = [f"{setup.replicas} × TP={setup.tp}" if setup.replicas > 1 else f"TP={setup.tp}"]
    if with_model:
        parts.insert(0, setup.model.rsplit("/", 1)[-1])
    return " ".join([*parts, *([setup.variant] if setup.variant else [])])


def _same_model(one: Setup, two: Setup) -> bool:
    """Return whether two setups are alike but for the nodes that they run on."""
    names = (SETUP_FIELDS.keys() - {"tp", "replicas"}) | {"variant"}
    return all(getattr(one, name) == getattr(two, name) for name in names)


# -- the verdict -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunVerdict:
    """The outcome of a run.

    Attributes:
        mark: `ok`, `attention` or `bad`.
        title: what was measured, on what.
        text: how many cells, and what is wrong with which.
    """

    mark: str
    title: str
    text: str


@dataclass(frozen=True)
class BestSetup:
    """The setup that serves a purpose.

    Attributes:
        winner: label of the setup; empty when it was not measured or nothing differs.
        text: the figures that say so.
        is_measured: there are figures.
    """

    purpose: str
    winner: str
    text: str
    is_measured: bool = True

    @property
    def title(self) -> str:
        """The winner, or why there is none."""
        return self.winner or ("No clear winner" if self.is_measured else "Not measured")


@dataclass(frozen=True)
class Lead:
    """The better of two figures over the other one.

    Attributes:
        ratio: how many times better, of geometric means.
        interval: of the ratio, in words.
        why_open: why none is ahead, with the figures; empty where one is ahead, by more than two
            identical servers differ by.
    """

    ratio: float
    interval: str
    why_open: str


def lead(metric: MetricName, first: Metric, other: Metric, concurrency: int) -> Lead | None:
    """Return how far the first is ahead; None where a figure is not positive.

    Raises:
        Failed: scipy is not installed.
    """
    more = metric in HIGHER_IS_BETTER
    values = [metric.values or (metric.mean,) for metric in (first, other)]
    worse, better = values[::-1] if more else values  # of times, the larger one is the worse
    (found,) = differences([(worse, better, floor_of(concurrency), True)])
    if found.ratio is None:
        return None
    interval = "too few runs for an interval"
    if found.low is not None and found.high is not None:
        interval = f"{100 * CONFIDENCE:.0f} % interval {factor(found.low)} to {factor(found.high)}"
    figures, why = f"{factor(found.ratio)}, {interval}", ""
    if found.low is None:
        why = figures
    elif found.low <= 1:
        why = f"too noisy to tell ({figures})"
    elif is_noise(found.ratio, concurrency):
        why = f"identical runs differ as much ({figures})"
    return Lead(found.ratio, interval, why)


def verdict(results: Results) -> RunVerdict:
    """Say how the run went."""
    record = results.record
    count = Counter(cell.status for cell in record.cells)
    attention = sum(bool(cell.attention) and cell.status == "ok" for cell in record.cells)
    begun = "" if record.status == "complete" else "begun "
    parts = [f"{count['ok']} of {len(record.cells)} {begun}cells measured"]
    others = {
        "failed": count["failed"],
        "left out": count["skipped"],
        "to be read with care": attention,
    }
    parts += [f"{cells} {what}" for what, cells in others.items() if cells]
    stage = {"running": "Not finished: ", "stopped": "Stopped early: ", "failed": "Failed: "}
    mark = "ok"
    if count["failed"] or record.status == "failed":
        mark = "bad"
    elif attention or count["skipped"] or record.status != "complete":
        mark = "attention"
    text = f"{stage.get(record.status, '')}{', '.join(parts)}."
    return RunVerdict(mark, _title(results), text)


def _title(results: Results) -> str:
    setups = results.setups or results.record.setups
    models = list(dict.fromkeys(setup.model.rsplit("/", 1)[-1] for setup in setups))
    names = short(", ".join(models[:3]) + (" and others" if len(models) > 3 else ""), 120)
    nodes = {node for setup in setups for node in setup.nodes} or {
        node.name for node in results.record.nodes
    }
    hardware = {node.hardware for node in results.record.nodes if node.hardware}
    what = short(next(iter(hardware)), 60) if len(hardware) == 1 else "node"
    if not nodes:
        return names or results.record.suite
    return f"{names} on {len(nodes)} × {what}"


# -- purposes --------------------------------------------------------------------------------------

_NOT_ALONE = "No cell with one request at a time has a result."


def answers(results: Results) -> Iterator[BestSetup]:
    """Yield which setup serves a single user, a quick first token, and many users."""
    # Of replicas a single user is served by one only.
    single = [setup for setup in results.setups if setup.replicas == 1] or results.setups
    decode = {s.id: results.at_lowest(s, "tg_tps") for s in single}
    yield _best(results, "One user: tokens a second", "tg_tps", decode, 1)
    yield _first_token(results, single)
    yield _throughput(results)


def _first_token(results: Results, setups: Sequence[Setup]) -> BestSetup:
    """Compare at the deepest context that all were measured at, and name the times without one."""
    purpose = "One user: prefill and first token"
    lines = {s.id: {p.x: p for p in results.at(s, "ttfr_ms", concurrency=1)} for s in setups}
    depths = [set(points) for points in lines.values() if points]
    if not depths:
        return BestSetup(purpose, "", _NOT_ALONE, is_measured=False)
    common = set.intersection(*depths) or set.union(*depths)
    deep, shallow = max(common), min(common)
    deepest = {id: points.get(deep) for id, points in lines.items()}
    found = _best(results, purpose, "ttfr_ms", deepest, 1)
    if deep == shallow:
        return found
    times = sorted((ps[shallow].metric.mean, id) for id, ps in lines.items() if shallow in ps)
    shown = " against ".join(f"{duration(time)} ({results.labels[id]})" for time, id in times[:2])
    return replace(found, text=f"{found.text} At depth {shallow:,.0f}: {shown}.")


def _throughput(results: Results) -> BestSetup:
    purpose = "Many users: two replicas or TP=2"
    one, two = next(iter(results.pairs), (None, None))
    replicas = results.replicas_of(one) if one else None
    if two is None or replicas is None:
        why = "It takes one model at TP=2 and as two replicas at TP=1."
        return BestSetup(purpose, "", why, is_measured=False)
    split, joint = (
        {int(p.x): p for p in results.at(setup, "tg_tps", depth=results.lowest_depth)}
        for setup in (replicas, two)
    )
    loads = sorted(split.keys() & joint.keys(), reverse=True)
    if not loads:
        why = "No load was measured on both two replicas and TP=2."
        return BestSetup(purpose, "", why, is_measured=False)
    points = [{replicas.id: split[load], two.id: joint[load]} for load in loads]
    found = _best(results, purpose, "tg_tps", points[0], loads[0])
    more = [_at_load(results, *each) for each in zip(loads[1:], points[1:], strict=True)]
    return replace(found, text=" ".join([found.text, *more]))


def _at_load(results: Results, load: int, points: Mapping[str, PlotPoint]) -> str:
    """Say which of two setups is ahead at a load, in a sentence."""
    (first, best), (_, other) = sorted(points.items(), key=lambda p: -p[1].metric.mean)
    ahead = lead("tg_tps", best.metric, other.metric, load)
    if ahead is None:
        return f"At c={load}: no verdict."
    said = f"{results.labels[first]}, {factor(ahead.ratio)}, {ahead.interval}"
    return f"At c={load}: {ahead.why_open or said}."


def _best(
    results: Results,
    purpose: str,
    metric: MetricName,
    measured: Mapping[str, PlotPoint | None],
    load: int,
) -> BestSetup:
    """Name the best of several setups and how far ahead of the next one it is.

    Args:
        measured: id of a setup to its figure; None where it has none.
    """
    more = metric in HIGHER_IS_BETTER
    points = [(id, point) for id, point in measured.items() if point is not None]
    if not points:
        return BestSetup(purpose, "", _NOT_ALONE, is_measured=False)
    points.sort(key=lambda item: item[1].metric.mean, reverse=more)
    (winner, first), *others = points
    name = (decode_name if more else prefill_name)(first.cell.key, load > 1)
    shown = f"{_speed(metric, first.metric)} at {name}"
    label = results.labels[winner]
    if not others:
        return BestSetup(purpose, label, f"{shown}; no other setup was measured for it.")
    next_one, other = others[0]
    against = f"{results.labels[next_one]} ({_speed(metric, other.metric)})"
    ahead = lead(metric, first.metric, other.metric, load)
    if ahead is None or ahead.why_open:
        why = f": {ahead.why_open}" if ahead is not None else ""
        return BestSetup(purpose, "", f"{label}, {shown}, against {against}{why}.")
    gain = f"{factor(ahead.ratio)} as fast as {against}, {ahead.interval}"
    return BestSetup(purpose, label, f"{shown}, {gain}.")


def _speed(metric: MetricName, figure: Metric) -> str:
    return duration(figure.mean) if metric.endswith("_ms") else f"{number(figure.mean)} tok/s"


# -- the run in one sentence -----------------------------------------------------------------------


def headline(results: Results) -> str:
    """The run in one sentence, for a post: decoding on one Spark and on two."""
    for pair in results.pairs:
        one, two = (results.at_lowest(setup, "tg_tps") for setup in pair)
        if one is None or two is None:
            continue
        ratio = speed_up("tg_tps", one.metric, two.metric)
        gain = f"{factor(ratio)} the " if ratio else ""
        return (
            f"{number(two.metric.mean)} tok/s for {_where(two)} on two Sparks (TP=2), "
            f"{gain}{number(one.metric.mean)} of one Spark."
        )
    points = [point for s in results.setups if (point := results.at_lowest(s, "tg_tps"))]
    best = max(points, key=lambda point: point.metric.mean, default=None)
    if best is None:
        return _without_tokens(results) or "No cell with one request at a time was measured."
    label = results.labels[best.cell.setup]
    return f"{number(best.metric.mean)} tok/s for {_where(best)} ({label})."


def _without_tokens(results: Results) -> str:
    """The run in one sentence where llama-benchy measured nothing; empty for none."""
    good = [cell for cell in results.record.cells if cell.status == "ok"]
    asked = [question for cell in good for question in cell.questions]
    if asked:
        right, count = sum(q.right for q in asked), sum(q.asked for q in asked)
        return f"{right} of {count} answers are right."
    served = [(cell.metrics["request_throughput"].mean, cell) for cell in good
              if "request_throughput" in cell.metrics]  # fmt: skip
    if not served:
        return ""
    most, cell = max(served, key=lambda found: found[0])
    goodput = cell.metrics.get("goodput")
    within = f", {number(goodput.mean)} of them within the limits" if goodput else ""
    return f"{number(most)} requests/s served{within} ({results.label(cell.setup)})."


def _where(point: PlotPoint) -> str:
    depth = f" at {tokens(point.cell.key.depth)} of context" if point.cell.key.depth else ""
    return f"one user{depth}"
