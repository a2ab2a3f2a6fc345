"""A run against what others published, and against what the plan predicted.

`published.json` has every figure of the articles and tables of docs/sources.md, with its source and
line. Those that say which load they were measured with are also a `CellKey` and a `Metric`, so that
a run can be compared with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from spark_cluster.bench.record import CellKey, CellResult, Metric, MetricName, Record, Setup
from spark_cluster.config.schema import (
    Document,
    Flat,
    Hidden,
    PrintedAs,
    Rounded,
    derived,
    printed,
)

DATA = Path(__file__).with_name("published.json")

ANY_OUTPUT = 0
"""Output of a `CellKey` whose source does not say it: of a prefill, which does not depend on it."""


class _Part(BaseModel):
    """What is compared is declared; what else a source says of it is kept as it is."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Configuration(_Part):
    """A configuration that a source says it served.

    Attributes:
        quantization: as recipes name it; `quantization_text` is as the source does.
        eager: without CUDA graphs.
        tool: load generator with its version; empty for a script of the author's.
    """

    id: str
    model: str
    quantization: str = ""
    tp: int | None = None
    tool: str = ""
    latency_mode: str = ""
    eager: bool = False


class Figure(_Part):
    """A figure as a source prints it.

    Attributes:
        line: of the source's text.
        config: id of its `Configuration`; None for a figure about something else.
        kind: measured, summary (the author's rounding), cited, log, theoretical, stated, claim,
            quality (passed or failed), derived_by_author, spec or measured_elsewhere.
        pp: tokens of the prompt; `tg` of the output, None where the source does not say it, as of
            a prefill, which does not depend on it.
        name: the metric as records have it; None where the source does not say the load, or
            records have no such metric.
    """

    id: str
    source: str
    line: int
    metric: str
    value: int | float | str | list[float]
    unit: str = ""
    kind: str
    config: str | None = None
    pp: int | None = None
    tg: int | None = None
    depth: int | None = None
    concurrency: int | None = None
    std: float | None = None
    name: MetricName | None = None

    @property
    def cell(self) -> tuple[CellKey, MetricName, Metric] | None:
        """The load and the figure; None for a figure without a `name`."""
        if self.name is None or not isinstance(self.value, int | float):
            return None
        key = CellKey(
            prompt=self.pp or 0,
            output=ANY_OUTPUT if self.tg is None else self.tg,
            depth=self.depth or 0,
            concurrency=self.concurrency or 1,
        )
        return key, self.name, Metric(mean=self.value, std=self.std)

    @property
    def shown(self) -> str:
        """The figure with its unit, as a table shows it."""
        value = self.value
        text = " to ".join(f"{v:g}" for v in value) if isinstance(value, list) else f"{value}"
        spread = f" ± {self.std:g}" if self.std is not None else ""
        return f"{text}{spread} {self.unit}".strip()

    def to_dict(self) -> dict[str, Any]:
        """As in `--json`: the figure, and its load and metric where it has them."""
        found = self.cell
        load = {"key": found[0].model_dump(mode="json")} if found else {}
        return {**self.model_dump(mode="json", exclude_defaults=True), **load}


class Published(_Part):
    """All of them."""

    configs: tuple[Configuration, ...]
    figures: tuple[Figure, ...]


@cache
def published() -> Published:
    """Return the published figures."""
    return Published.model_validate(json.loads(DATA.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Deviation(Document):
    """A figure of a run next to a published one.

    Attributes:
        caveats: what was not alike, so that the deviation is not only the server's.
    """

    figure: Hidden[Figure]
    cell: Hidden[CellResult]
    metric: MetricName
    measured: float
    value: Annotated[float, Field(serialization_alias="published")]
    caveats: tuple[str, ...]
    figure_id = derived(str, "figure.id", key="figure")
    cell_id = derived(str, "cell.id", key="cell")
    source = derived(str, "figure.source")
    published_std = derived(float | None, "figure.std")
    deviation = derived(Annotated[float, Rounded(5)], "share")

    @property
    def share(self) -> float:
        """Return how far off it is, as a share of the published figure."""
        return self.measured / self.value - 1


@dataclass(frozen=True)
class OtherFigure(Document):
    """A published figure that the run is not compared with, and why."""

    figure: Flat[Annotated[Figure, PrintedAs(Figure.to_dict)]]
    reason: str


@dataclass(frozen=True)
class PublishedComparison:
    """A run against all published figures.

    Attributes:
        rows: figures that the run measured too.
        others: all other figures, each with the reason why there is no row.
    """

    rows: tuple[Deviation, ...]
    others: tuple[OtherFigure, ...]


def against_published(record: Record) -> PublishedComparison:
    """Compare a run with published figures of the same model, quantization, size and load."""
    known = published()
    configs = {config.id: config for config in known.configs}
    rows: list[Deviation] = []
    others: list[OtherFigure] = []
    for figure in known.figures:
        found, why = _match(figure, configs.get(figure.config or ""), record)
        rows += found
        if not found:
            others.append(OtherFigure(figure, why))
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
    setups = [setup.id for setup in record.setups if _same_server(setup, config)]
    if not setups:
        size = f" at TP={config.tp}" if config.tp else ""
        return [], f"the run has no {config.model} {config.quantization}{size}"
    caveats = _caveats(config, record)
    found = [
        Deviation(figure, cell, name, measured, metric.mean, caveats)
        for setup in setups
        for cell, measured in _measured(record, setup, key, name)
        if metric.mean
    ]
    return found, f"the run has no {name} of this load"


def _measured(
    record: Record, setup: str, key: CellKey, metric: MetricName
) -> list[tuple[CellResult, float]]:
    """Return the cells of a load on a server that went well, each with its figure."""
    free = {"output"} if key.output == ANY_OUTPUT else set()
    wanted = key.model_dump(exclude=free)
    return [
        (cell, cell.metrics[metric].mean)
        for cell in record.cells
        if cell.setup == setup and cell.status == "ok" and metric in cell.metrics
        if cell.key.model_dump(exclude=free) == wanted
    ]


def _same_server(setup: Setup, config: Configuration) -> bool:
    eager = "--enforce-eager" in setup.flags or "enforce-eager=true" in setup.variant.split()
    return (
        setup.model == config.model
        and setup.quantization == config.quantization
        and setup.tp == config.tp
        and setup.replicas == 1
        and eager == config.eager
    )


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
class PredictedFigure(Document):
    """A prediction next to what was measured."""

    setup: str
    key: CellKey
    metric: MetricName
    low: float
    value: Annotated[float, Field(serialization_alias="predicted")]
    high: float
    measured: float
    inside = derived(bool, "is_inside")

    @property
    def is_inside(self) -> bool:
        """True if it is within the predicted range."""
        return self.low <= self.measured <= self.high

    @printed
    def error(self) -> Annotated[float, Rounded(5)]:
        """Return predicted / measured - 1."""
        return self.value / self.measured - 1


def against_plan(record: Record) -> list[PredictedFigure]:
    """Return the predictions of a run that were measured."""
    return [
        PredictedFigure(setup.id, one.key, one.metric, one.low, one.value, one.high, measured)
        for setup in record.setups
        for one in setup.predictions
        for _, measured in _measured(record, setup.id, one.key, one.metric)
        if measured
    ]


def coverage(rows: list[PredictedFigure]) -> float | None:
    """Return the share of predictions whose range held; None without one."""
    return sum(row.is_inside for row in rows) / len(rows) if rows else None


def mean_error(rows: list[PredictedFigure]) -> float | None:
    """Return the mean absolute error of predictions, as a share of what was measured."""
    return sum(abs(row.error) for row in rows) / len(rows) if rows else None
