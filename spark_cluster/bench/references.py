"""A run against what others published, and against what the plan predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_cluster.bench.published import (
    ANY_OUTPUT,
    Configuration,
    Figure,
    Published,
    published,
)
from spark_cluster.bench.record import CellKey, CellResult, MetricName, Record, Setup


@dataclass(frozen=True)
class Deviation:
    """A figure of a run next to a published one.

    Attributes:
        share: measured / published - 1.
        caveats: what was not alike, so that the deviation is not only the server's.
    """

    figure: Figure
    cell: CellResult
    metric: MetricName
    measured: float
    value: float
    caveats: tuple[str, ...]

    @property
    def share(self) -> float:
        """Return how far off it is, as a share of the published figure."""
        return self.measured / self.value - 1

    def to_dict(self) -> dict[str, Any]:
        """As in `--json`."""
        return {
            "figure": self.figure.id,
            "source": self.figure.source,
            "cell": self.cell.id,
            "metric": self.metric,
            "measured": self.measured,
            "published": self.value,
            "published_std": self.figure.std,
            "deviation": round(self.share, 5),
            "caveats": list(self.caveats),
        }


@dataclass(frozen=True)
class PublishedComparison:
    """A run against all published figures.

    Attributes:
        rows: figures that the run measured too.
        others: all other figures, each with the reason why there is no row.
    """

    rows: tuple[Deviation, ...]
    others: tuple[tuple[Figure, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """As in `--json`: no figure is left out."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "others": [{**figure.to_dict(), "reason": why} for figure, why in self.others],
        }


def against_published(record: Record, known: Published | None = None) -> PublishedComparison:
    """Compare a run with published figures of the same model, quantization, size and load."""
    known = known or published()
    configs = {config.id: config for config in known.configs}
    rows: list[Deviation] = []
    others: list[tuple[Figure, str]] = []
    for figure in known.figures:
        found, why = _match(figure, configs.get(figure.config or ""), record)
        rows += found
        if not found:
            others.append((figure, why))
    return PublishedComparison(tuple(rows), tuple(others))


def _match(
    figure: Figure, config: Configuration | None, record: Record
) -> tuple[list[Deviation], str]:
    load = figure.cell
    if load is None:
        return [], "the source does not say the load that it was measured with"
    if config is None:
        return [], "the source does not say what was served"
    key, name, metric = load
    caveats = _caveats(config, record)
    setups = [setup for setup in record.setups if _same_server(setup, config)]
    if not setups:
        size = f" at TP={config.tp}" if config.tp else ""
        return [], f"the run has no {config.model} {config.quantization}{size}"
    found = [
        Deviation(figure, cell, name, cell.metrics[name].mean, metric.mean, caveats)
        for setup in setups
        for cell in record.cells
        if cell.setup == setup.id
        and cell.status == "ok"
        and _same_load(cell.key, key)
        and name in cell.metrics
        and metric.mean
    ]
    return found, f"the run has no {name} of this load"


def _same_server(setup: Setup, config: Configuration) -> bool:
    eager = "--enforce-eager" in setup.flags or "enforce-eager=true" in setup.variant.split()
    return (
        setup.model == config.model
        and setup.quantization == config.quantization
        and setup.tp == config.tp
        and setup.replicas == 1
        and eager == config.eager
    )


def _same_load(ours: CellKey, theirs: CellKey) -> bool:
    if theirs.output == ANY_OUTPUT:
        theirs = theirs.model_copy(update={"output": ours.output})
    return ours == theirs


def _caveats(config: Configuration, record: Record) -> tuple[str, ...]:
    """Return what was not alike; versions of llama-benchy count tokens differently (source:
    llama-benchy)."""
    found = []
    ours = f"{record.tool.name} {record.tool.version}"
    if config.tool != ours:
        found.append(f"{config.tool or 'a script of the author'}, not {ours}")
    theirs = config.latency_mode
    if theirs and theirs != record.tool.latency_mode:
        found.append(f"latency mode {theirs}, not {record.tool.latency_mode}")
    return tuple(found)


# -- predictions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictedFigure:
    """A prediction next to what was measured."""

    setup: str
    key: CellKey
    metric: MetricName
    low: float
    value: float
    high: float
    measured: float

    @property
    def is_inside(self) -> bool:
        """True if it is within the predicted range."""
        return self.low <= self.measured <= self.high

    @property
    def error(self) -> float:
        """Return predicted / measured - 1."""
        return self.value / self.measured - 1

    def to_dict(self) -> dict[str, Any]:
        """As in `--json`."""
        return {
            "setup": self.setup,
            "key": self.key.model_dump(mode="json"),
            "metric": self.metric,
            "low": self.low,
            "predicted": self.value,
            "high": self.high,
            "measured": self.measured,
            "error": round(self.error, 5),
            "inside": self.is_inside,
        }


def against_plan(record: Record) -> list[PredictedFigure]:
    """Return the predictions of a run that were measured."""
    return list(_predicted_figures(record))


def coverage(rows: list[PredictedFigure]) -> float | None:
    """Return the share of predictions whose range held; None without one."""
    return sum(row.is_inside for row in rows) / len(rows) if rows else None


def mean_error(rows: list[PredictedFigure]) -> float | None:
    """Return the mean absolute error of predictions, as a share of what was measured."""
    return sum(abs(row.error) for row in rows) / len(rows) if rows else None


def _predicted_figures(record: Record) -> Iterator[PredictedFigure]:
    for setup in record.setups:
        for one in setup.predictions:
            for cell in record.cells:
                metric = cell.metrics.get(one.metric)
                alike = cell.setup == setup.id and cell.key == one.key and cell.status == "ok"
                if alike and metric is not None and metric.mean:
                    yield PredictedFigure(
                        setup.id, one.key, one.metric, one.low, one.value, one.high, metric.mean
                    )
