"""The changes that `predict --calibrate` would make, were the cells of a run given to it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spark_cluster.bench.record import CellResult, Metric, Record, Setup
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import Failed, InvalidFile, UsageError
from spark_cluster.planning.calibrate import Calibration, Point, calibrate, is_read_bound
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.of_recipe import serving_of
from spark_cluster.planning.speed.serving import Serving


@dataclass(frozen=True)
class Preview:
    """A calibration by a run, as it would be.

    Attributes:
        found: None where the run decides no constant.
        why: why there is none; empty otherwise.
        left_out: servers and figures that are no use, each with the reason.
    """

    found: Calibration | None
    why: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def constants(self) -> dict[str, dict[str, float]] | None:
        """Each fitted constant as it `was`, as shipped, and as it `is` by this run."""
        if self.found is None:
            return None
        was, now = Constants().to_dict(), self.found.constants.to_dict()
        return {n: {"was": was[n], "is": round(now[n], 6)} for n in self.found.fitted}

    @property
    def kept(self) -> dict[str, str] | None:
        """Constants that stay, and why."""
        return dict(self.found.kept) if self.found is not None else None

    @property
    def points(self) -> int | None:
        """The number of figures that it is fitted to."""
        return self.found.points if self.found is not None else None

    @property
    def mean_error(self) -> dict[str, float | None] | None:
        """The mean error `before` and `after`, and of points left out; shares."""
        if self.found is None:
            return None
        left_out = self.found.left_out
        return {
            "before": round(self.found.before, 4),
            "after": round(self.found.after, 4),
            "left_one_out": None if left_out is None else round(left_out, 4),
        }

    @property
    def far_off(self) -> tuple[str, ...] | None:
        """Figures that the fit does not describe."""
        return self.found.far_off if self.found is not None else None

    def to_dict(self) -> dict[str, Any]:
        """As in `bench compare --json`."""
        return {
            "constants": self.constants,
            "kept": self.kept,
            "points": self.points,
            "mean_error": self.mean_error,
            "far_off": self.far_off,
            "why": self.why,
            "left_out": list(self.left_out),
        }


def preview(record: Record, *folders: Path) -> Preview:
    """Return what `predict --calibrate` would make of a run.

    Args:
        folders: where the folders of models are looked for, too.
    """
    points: list[Point] = []
    left_out: list[str] = []
    for setup in record.setups:
        try:
            served, decoding = _served(setup, *folders)
        except (UsageError, InvalidFile) as error:
            left_out.append(f"{setup.id}: {error.message}")
            continue
        if not decoding:
            left_out.append(f"{setup.id}: decoding with a drafter depends on its acceptance")
        found = [p for p in _points(record, setup, served) if decoding or p.metric == "ttfr_ms"]
        short = [point for point in found if is_read_bound(point)]
        left_out += [f"{p.label}: the prompt is too short to show the speed" for p in short]
        points += [point for point in found if point not in short]
    try:
        return Preview(calibrate(points, Constants()), left_out=tuple(left_out))
    except (UsageError, Failed) as error:
        return Preview(None, error.message, tuple(left_out))


def _served(setup: Setup, *folders: Path) -> tuple[Serving, bool]:
    """Return what a server serves, and whether its decoding can be calibrated by.

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


def _points(record: Record, setup: Setup, served: Serving) -> Iterator[Point]:
    for cell in record.cells:
        key = cell.key
        is_load = key.kind == "load" and key.request_rate is None and not key.context_prefill
        if cell.setup == setup.id and cell.status == "ok" and is_load and key.prompt:
            yield from _of_cell(cell, served, cached=record.tool.prefix_caching)


def _of_cell(cell: CellResult, served: Serving, *, cached: bool) -> Iterator[Point]:
    key = cell.key
    each = cell.metrics.get("tg_tps_request")
    if each is None and key.concurrency == 1:
        each = cell.metrics.get("tg_tps")
    if each is not None and key.output:
        context = key.depth + key.prompt + key.output / 2
        label = f"{cell.id}: decode"
        yield Point(served, "decode_tok_s", _middle(each), context, 0, key.concurrency, label)
    first = cell.metrics.get("ttfr_ms")
    if first is not None and key.concurrency == 1:
        before, new = (key.depth, key.prompt) if cached else (0, key.depth + key.prompt)
        yield Point(served, "ttfr_ms", _middle(first), before, new, 1, f"{cell.id}: TTFR")


def _middle(metric: Metric) -> float:
    """Return the median of the runs, or the mean where they were not kept."""
    return statistics.median(metric.values) if metric.values else metric.mean
