"""The share of a drafter's tokens that was accepted in a cell, from the engine's own counters.

They are in the sampler's lines, once a second (see node/engine_metrics.py). Of a cell what counts
is by how much they grew between its begin and its end, with its warm-up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from spark_cluster.bench.reading import number
from spark_cluster.bench.record import CellResult, Metric
from spark_cluster.node.telemetry import FORMAT

SETTLED_S = 1.5
"""Seconds after a cell in which a line may still say what the counters were before its end. The
load generator of the next cell takes longer to start."""


@dataclass(frozen=True)
class Counters:
    """The counters of one engine at a moment.

    Attributes:
        time: UNIX seconds.
        drafts: steps in which tokens were drafted.
        drafted, accepted: tokens.
    """

    time: float
    drafts: float
    drafted: float
    accepted: float


def counters(lines: Iterable[str]) -> Iterator[Counters]:
    """Yield the counters in a sampler's lines; none where the engine has no drafter."""
    for line in lines:
        try:
            line_data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(line_data, dict) and line_data.get("format") == FORMAT:
            found = _of_line(line_data)
            if found is not None:
                yield found


def _of_line(line_data: Mapping[str, Any]) -> Counters | None:
    engine = line_data.get("engine")
    if not isinstance(engine, dict):
        return None
    time = number(line_data.get("time"))
    drafts, drafted, accepted = (
        number(engine.get(name)) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if time is None or drafts is None or drafted is None or accepted is None:
        return None
    return Counters(time, drafts, drafted, accepted)


def with_acceptance(
    cells: Sequence[CellResult], engines: Sequence[Sequence[Counters]]
) -> list[CellResult]:
    """Return results with the acceptance of drafts; one that the load generator told stays.

    Args:
        engines: the counters of each engine that served, in the order of time.
    """
    return [_with(cell, engines) for cell in cells]


def _with(cell: CellResult, engines: Sequence[Sequence[Counters]]) -> CellResult:
    started, finished = cell.started, cell.finished
    known = cell.status != "ok" or cell.key.context_prefill or "acceptance" in cell.metrics
    if known or started is None or finished is None:
        return cell
    grown = [_grown(found, started, finished) for found in engines]
    drafts, drafted, accepted = (sum(one[k] for one in grown) for k in range(3))
    if not (drafts > 0 and 0 <= accepted <= drafted and drafted > 0):
        return cell
    metrics = {
        **cell.metrics,
        "acceptance": Metric(mean=accepted / drafted),
        # Each step also gives the token that the model itself makes.
        "acceptance_length": Metric(mean=1 + accepted / drafts),
    }
    return cell.model_copy(update={"metrics": metrics})


def _grown(
    found: Sequence[Counters], started: datetime, finished: datetime
) -> tuple[float, float, float]:
    """Return by how much drafts, drafted and accepted tokens grew; where an engine was started
    again in between, what it counted before is left out."""
    begin, end = started.timestamp(), finished.timestamp()
    before = [one for one in found if one.time <= begin][-1:]
    within = [one for one in found if begin < one.time <= end + SETTLED_S]
    total = [0.0, 0.0, 0.0]
    for a, b in pairwise([*before, *within]):
        steps = (b.drafts - a.drafts, b.drafted - a.drafted, b.accepted - a.accepted)
        if min(steps) >= 0:
            total = [old + new for old, new in zip(total, steps, strict=True)]
    return total[0], total[1], total[2]
