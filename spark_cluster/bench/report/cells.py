"""The cells of a run as the report looks at them: by setup and shape, against depth and load."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from spark_cluster.bench.compare import SETUP_FIELDS
from spark_cluster.bench.record import (
    HIGHER_IS_BETTER,
    CellKey,
    CellResult,
    Metric,
    MetricName,
    Record,
    Setup,
)
from spark_cluster.bench.references import PredictedFigure, against_plan
from spark_cluster.bench.statistics import floor_of

Shape = tuple[int, int]
"""Prompt and output, tokens."""


@dataclass(frozen=True)
class PlotPoint:
    """A measured figure of a line in a plot."""

    x: float
    metric: Metric
    cell: CellResult


@dataclass(frozen=True)
class SizePair:
    """A recipe on one node and on two."""

    one: Setup
    two: Setup


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
    def pairs(self) -> tuple[SizePair, ...]:
        """Setups at TP=1 with those of the same model and arguments at TP=2."""
        single = [setup for setup in self.setups if setup.replicas == 1]
        return tuple(
            SizePair(one, two)
            for one in single
            for two in single
            if one.tp == 1 and two.tp == 2 and _same_model(one, two)
        )

    def replicas_of(self, pair: SizePair) -> Setup | None:
        """The setup of a pair's recipe that runs one server on each of the two nodes."""
        for setup in self.setups:
            if setup.tp == 1 and setup.replicas == 2 and _same_model(setup, pair.one):
                return setup
        return None


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
