"""The plan's speeds and a run's: what a suite is planned with, what a run says of a plan.

Before a run the plan's speeds estimate how long a suite takes, and are recorded as predictions.
After it, the user's own runs are shown next to predictions as evidence, and `bench compare` shows
what `predict --calibrate` would change were a run given to it.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spark_cluster.bench.duration import Speed, Speeds
from spark_cluster.bench.expansion import PlannedSetup
from spark_cluster.bench.record import (
    CellKey,
    CellResult,
    Metric,
    MetricName,
    Prediction,
    Record,
    Setup,
)
from spark_cluster.bench.run_folder import RECORD, load_record
from spark_cluster.config.launch import Launch
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Hidden
from spark_cluster.errors import Failed, InvalidFile, SparkClusterError, UsageError
from spark_cluster.plan.calibrate import Calibration, Point, calibrate, is_read_bound
from spark_cluster.plan.evidence import SHORT, Evidence, of_own
from spark_cluster.plan.speed.constants import Constants, load_constants
from spark_cluster.plan.speed.decode import request_speed
from spark_cluster.plan.speed.estimate import SMALLEST, Estimate
from spark_cluster.plan.speed.prefill import prefill
from spark_cluster.plan.speed.serving import Serving, serving_of

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
    served: dict[str, Serving | None] = {}

    def speed(setup: PlannedSetup, context: int) -> Speed | None:
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
        return Speed(max(context, 1) / first.seconds.expected, each.expected)

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


def _serving(setup: PlannedSetup, project: Project) -> Serving | None:
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


def _recorded_serving(setup: Setup, *folders: Path) -> tuple[Serving, bool]:
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


def _points(cell: CellResult, served: Serving, *, cached: bool) -> Iterator[Point]:
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
