"""What a run is measured against: figures of others, the plan's predictions, the user's own runs.

`published.json` has every figure of the articles and tables of docs/sources.md, with its source and
line. Those that say which load they were measured with are also a `CellKey` and a `Metric`, so that
a run can be compared with them.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_cluster.bench.expansion import PlannedSetup, ServerSpeed, Speeds
from spark_cluster.bench.record import (
    RECORD,
    CellKey,
    CellResult,
    Metric,
    MetricName,
    Prediction,
    Record,
    Setup,
    load_record,
)
from spark_cluster.config.launch import Launch
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Flat, Hidden, PrintedAs, Rounded, derived, printed
from spark_cluster.errors import Failed, InvalidFile, SparkClusterError, UsageError
from spark_cluster.plan.calibrate import Calibration, Point, calibrate, is_read_bound
from spark_cluster.plan.estimate import SMALLEST, Constants, Estimate, load_constants
from spark_cluster.plan.evidence import SHORT, Evidence, of_own
from spark_cluster.plan.prefill import prefill
from spark_cluster.plan.serving import ServingSetup, serving_of
from spark_cluster.plan.speed import request_speed

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


@dataclass(frozen=True)
class PlanComparison:
    """A run next to its plan, as `bench compare --predicted --json` prints it.

    Attributes:
        coverage: share of predictions whose range held; None without one.
        mean_error: the mean absolute error of predictions, as a share of what was measured.
        calibration: what calibrating by the run would change.
    """

    coverage: float | None
    mean_error: float | None
    rows: list[PredictedFigure]
    calibration: Preview


def compared_to_plan(record: Record, folder: Path) -> PlanComparison:
    """Compare a run with what the plan predicted for it.

    Args:
        folder: where the folders of models are looked for, too.
    """
    rows = against_plan(record)
    coverage = sum(row.is_inside for row in rows) / len(rows) if rows else None
    error = sum(abs(row.error) for row in rows) / len(rows) if rows else None
    return PlanComparison(coverage, error, rows, preview(record, folder))


# Before a run the plan's speeds estimate how long a suite takes, and are recorded as predictions.
# After it, the user's own runs are shown next to predictions as evidence, and `bench compare` shows
# what `predict --calibrate` would change were a run given to it.

MOST_RUNS = 50
"""The newest runs of a project that are looked at."""

DEPTH = 3
"""Folders below the project's in which runs are looked for."""

# -- before a run ----------------------------------------------------------------------------------


def planned_speeds(project: Project) -> Speeds:
    """Return what gives a server's planned speed; None for what is not known of.

    Raises:
        InvalidFile: the project's own calibration is wrong.
    """
    constants = load_constants(project)
    served: dict[str, ServingSetup | None] = {}

    def speed(setup: PlannedSetup, context: int) -> ServerSpeed | None:
        if setup.id not in served:
            served[setup.id] = _serving(setup, project)
        found, recipe = served[setup.id], setup.served
        if found is None or recipe is None:
            return None
        try:
            first = prefill(found, max(context, 1), constants=constants)
            each = request_speed(recipe, found, context=context, constants=constants)
        except SparkClusterError:  # the plan has no figure for it
            return None
        return ServerSpeed(max(context, 1) / first.seconds.expected, each.expected)

    return speed


def predictions(
    project: Project, setup: PlannedSetup, keys: Iterable[CellKey], *, prefix_caching: bool = False
) -> tuple[Prediction, ...]:
    """Return what the plan predicts for cells with one request at a time, for the record.

    Decoding is predicted in the middle of the answer, prefill for all tokens that are not cached.

    Raises:
        InvalidFile: the project's own calibration is wrong.
    """
    found = _serving(setup, project)
    if found is None or setup.served is None:
        return ()
    constants = load_constants(project)
    made: list[Prediction] = []
    for key in filter(_is_plain, keys):
        if key.concurrency != 1:
            continue
        cached = key.depth if prefix_caching else 0
        context = _middle_of_answer(key)
        try:
            first = prefill(found, key.prompt + key.depth - cached, cached, constants=constants)
            each = request_speed(setup.served, found, context=context, constants=constants)
        except SparkClusterError:  # the plan has no figure for it
            continue
        made += [
            _prediction(key, "tg_tps", each),
            _prediction(key, "pp_tps", first.tokens_s),
            _prediction(key, "ttfr_ms", first.seconds, 1000.0),
        ]
    return tuple(made)


def _prediction(
    key: CellKey, metric: MetricName, found: Estimate, scale: float = 1.0
) -> Prediction:
    low, value, high = (n * scale for n in (found.low, found.expected, found.high))
    return Prediction(metric=metric, key=key, low=low, value=value, high=high)


def _serving(setup: PlannedSetup, project: Project) -> ServingSetup | None:
    """Return what a server serves; None where its speed cannot be predicted."""
    if setup.served is None:
        return None
    try:
        found = serving_of(setup.served, setup.tp, project.folder)
        is_toy = found.weights.step_bytes() < SMALLEST
    except SparkClusterError:  # the model's shape is not known, say
        return None
    return None if is_toy else found


# -- what a cell says ------------------------------------------------------------------------------


def _is_plain(key: CellKey) -> bool:
    """Return whether a load is of requests that each send their whole prompt, one after another."""
    return key.kind == "load" and key.request_rate is None


def _middle_of_answer(key: CellKey) -> float:
    """Return the tokens in the cache of a request in the middle of its answer."""
    return key.depth + key.prompt + key.output / 2


def _good_cells(record: Record, setup: Setup) -> Iterator[CellResult]:
    """Yield the cells of a server that say how fast it answers."""
    for cell in record.cells:
        is_usable = _is_plain(cell.key) and not cell.key.context_prefill
        if cell.setup == setup.id and cell.status == "ok" and is_usable:
            yield cell


def _each(cell: CellResult) -> Metric | None:
    """Return tokens/s of one request."""
    alone = cell.metrics.get("tg_tps") if cell.key.concurrency == 1 else None
    return cell.metrics.get("tg_tps_request", alone)


# -- own runs as evidence --------------------------------------------------------------------------


def own_evidence(project: Project, launch: Launch, users: int, context: float) -> Evidence | None:
    """Return what the project's own runs measured of a launch; None when none did.

    A record that cannot be read says nothing.
    """
    near = context / 8, max(SHORT, 4 * context)
    figures = [
        (each.mean, path.parent.name)
        for path, record in _records(project.folder)
        for setup in record.setups
        if _is_alike(setup, launch)
        for cell in _good_cells(record, setup)
        if cell.key.concurrency == users and near[0] <= _middle_of_answer(cell.key) <= near[1]
        if (each := _each(cell)) is not None and each.mean
    ]
    return of_own(figures)


def _records(folder: Path) -> Iterator[tuple[Path, Record]]:
    found = {path for depth in range(1, DEPTH + 1) for path in folder.glob("*/" * depth + RECORD)}
    newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_RUNS]
    for path in newest:
        try:
            yield path, load_record(path)
        except SparkClusterError:
            continue


def _is_alike(setup: Setup, launch: Launch) -> bool:
    """Return whether a server of a run was what the launch is."""
    drafts = any(re.match(r"--speculative[-_]config", flag) for flag in setup.flags)
    return (
        setup.model.casefold() == launch.model.casefold()
        and setup.tp == launch.tp
        and setup.replicas == 1
        and setup.engine == launch.engine
        and (not launch.quantization or setup.quantization in ("", launch.quantization))
        and drafts == bool(launch.drafted_tokens)
    )


# -- calibrating by a run --------------------------------------------------------------------------


@dataclass(frozen=True)
class Preview(Document):
    """A calibration by a run, as it would be.

    Attributes:
        found: None where the run decides no constant.
        why: why there is none; empty otherwise.
        left_out: servers and figures that are no use, each with the reason.
        constants: each fitted constant as it `was`, as shipped, and as it `is` by this run.
        kept: constants that stay, and why.
        points: number of figures that it is fitted to.
        mean_error: `before` and `after`, and of points left out; shares.
        far_off: figures that the fit does not describe.
    """

    found: Hidden[Calibration | None]
    why: str = ""
    left_out: tuple[str, ...] = ()
    constants: dict[str, dict[str, float]] | None = None
    kept: dict[str, str] | None = None
    points: int | None = None
    mean_error: dict[str, float | None] | None = None
    far_off: list[str] | None = None


def preview(record: Record, *folders: Path) -> Preview:
    """Return what `predict --calibrate` would make of a run.

    Args:
        folders: where the folders of models are looked for, too.
    """
    points: list[Point] = []
    left_out: list[str] = []
    for setup in record.setups:
        try:
            served, decoding = _recorded_serving(setup, *folders)
        except (UsageError, InvalidFile) as error:
            left_out.append(f"{setup.id}: {error.message}")
            continue
        if not decoding:
            left_out.append(f"{setup.id}: decoding with a drafter depends on its acceptance")
        cells = [cell for cell in _good_cells(record, setup) if cell.key.prompt]
        cached = record.tool.prefix_caching
        found = [p for cell in cells for p in _points(cell, served, cached=cached)]
        found = [point for point in found if decoding or point.metric == "ttfr_ms"]
        short = [point for point in found if is_read_bound(point)]
        left_out += [f"{p.label}: the prompt is too short to show the speed" for p in short]
        points += [point for point in found if point not in short]
    try:
        fit = calibrate(points, Constants())
    except (UsageError, Failed) as error:
        return Preview(None, error.message, tuple(left_out))
    was, now, document = Constants().figures(), fit.constants.figures(), fit.to_dict()
    told: dict[str, Any] = {
        name: document[name] for name in ("kept", "points", "mean_error", "far_off")
    }
    constants = {name: {"was": was[name], "is": round(now[name], 6)} for name in fit.fitted}
    return Preview(fit, left_out=tuple(left_out), constants=constants, **told)


def _recorded_serving(setup: Setup, *folders: Path) -> tuple[ServingSetup, bool]:
    """Return what a server served, and whether its decoding can be calibrated by.

    Raises:
        UsageError: it is not known, or it is of several servers.
        InvalidFile: the model's config.json is wrong.
    """
    if setup.replicas > 1:
        raise UsageError("several replicas share its requests")
    try:
        recipe = Recipe.model_validate(json.loads(setup.recipe_text))
    except (ValueError, RecursionError, ValidationError):
        raise UsageError("the record does not contain its recipe") from None
    return serving_of(recipe, setup.tp, *folders), recipe.drafter is None


def _points(cell: CellResult, served: ServingSetup, *, cached: bool) -> Iterator[Point]:
    key, each, first = cell.key, _each(cell), cell.metrics.get("ttfr_ms")
    if each is not None and key.output:
        label, context = f"{cell.id}: decode", _middle_of_answer(key)
        yield Point(served, "decode_tok_s", _median(each), context, 0, key.concurrency, label)
    if first is not None and key.concurrency == 1:
        before, new = (key.depth, key.prompt) if cached else (0, key.depth + key.prompt)
        yield Point(served, "ttfr_ms", _median(first), before, new, 1, f"{cell.id}: TTFR")


def _median(metric: Metric) -> float:
    """Return the median of the runs, or the mean where they were not kept."""
    return statistics.median(metric.values) if metric.values else metric.mean
