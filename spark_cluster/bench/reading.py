"""Helpers of the readers of load generators' results: figures that may be missing or no numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.record import CellKey, CellResult, Metric, MetricName

MAX_BYTES = 256 << 20
"""A result of an hour with a figure for every token stays below this."""

LARGEST = 1e30
"""A figure is smaller: sums and products of those that a foreign file gives stay finite."""

LATEST = 1e11
"""UNIX seconds that no clock shows: a node's file is foreign input."""


def read_json(path: Path) -> dict[str, Any] | str:
    """Return a JSON object, or why there is none."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return f"{path.name} is larger than {MAX_BYTES >> 20} MiB"
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it wrote no result ({path.name})"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return f"{path.name} is not JSON; it may have been cut while it was written"
    return data if isinstance(data, dict) else f"{path.name}: expected a JSON object"


def number(value: object) -> float | None:
    """Return a number below LARGEST, as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def moment(seconds: float | None) -> datetime | None:
    """Return the time of UNIX seconds; None for what no clock shows."""
    if seconds is None or not 0 < seconds < LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def numbers(values: object) -> list[float]:
    """Return the numbers of a list; what is not one counts as missing."""
    if not isinstance(values, list):
        return []
    return [found for value in values if (found := number(value)) is not None]


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by linear interpolation, as numpy's default is.

    Args:
        values: at least one.
        share: between 0 and 1.
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def metric(values: Sequence[float], percentiles: dict[str, float] | None = None) -> Metric:
    """Return a figure with a value for each run.

    Args:
        values: at least one.
    """
    std = stdev(values) if len(values) > 1 else None
    return Metric(mean=fmean(values), std=std, values=tuple(values), percentiles=percentiles or {})


def result(
    cell: PlannedCell,
    *,
    metrics: dict[MetricName, Metric] | None = None,
    reasons: Sequence[str] = (),
    attention: Sequence[str] = (),
    raw: tuple[str, ...] = (),
    key: CellKey | None = None,
) -> CellResult:
    """Return a cell's result: failed when there is a reason.

    Args:
        key: of another phase of the cell, which is a cell of its own.
    """
    own = key is None or key == cell.key
    return CellResult(
        id=cell.id if own else f"{cell.id}-ctx",
        setup=cell.setup,
        key=key or cell.key,
        runs=cell.runs,
        status="failed" if reasons else "ok",
        reason="; ".join(dict.fromkeys(reasons)),
        attention=tuple(dict.fromkeys(attention)),
        metrics=metrics or {},
        raw=raw,
    )
