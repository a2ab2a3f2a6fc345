"""The result of a cell from those of its replicas, which were loaded at the same time.

llama-benchy gives the throughput of all requests for each run, and times for each request. Of
several replicas the throughputs of the same run are summed, and the times of all requests are
taken together, so that percentiles are those of all. `peak_tps` is summed too: as the peaks of two
replicas need not be in the same second, it is an upper bound.

The sums are of loads that were there at once only as far as the runs overlap: run by run, the time
in which all replicas were under load is compared with that from the first request to the last
answer of any. Below `LEAST_OVERLAP` the cell says so in an `attention`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from spark_cluster.bench import benchy
from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.reading import (
    json_lines,
    moment,
    number,
    numbers,
    read_json,
    result,
)
from spark_cluster.bench.record import CellResult, ReplicaShare
from spark_cluster.bench.suite_schema import MeasurementSettings

LEAST_OVERLAP = 0.9
"""Share of a run's time from which the replicas count as loaded at once. Our choice: each run
begins on all at once, so that less means that one replica was slower by a tenth."""

Window = tuple[float, float]
"""First request and last answer of a run, UNIX seconds on the first replica's clock."""


@dataclass(frozen=True)
class ReplicaPart:
    """The results of a cell from one replica's node.

    Attributes:
        node: where the load generator ran.
        cell: the replica's part of the cell.
        worker: what replica_worker.py says: `attempt`, `clock_s`, `started`, `finished`.
        folder: on the laptop, with the load generator's files.
        results: the part's own, as of a server that is measured alone.
    """

    node: str
    cell: PlannedCell
    worker: Mapping[str, Any]
    folder: Path
    results: Sequence[CellResult]

    @property
    def clock_s(self) -> float:
        """Seconds by which its clock is ahead of the first replica's."""
        return number(self.worker.get("clock_s")) or 0.0

    def result(self, *, context_prefill: bool) -> CellResult | None:
        """Return the result of a phase of the cell."""
        found = (r for r in self.results if r.key.context_prefill == context_prefill)
        return next(found, None)

    def windows(self) -> dict[int, Window]:
        """Return when each run was under way, by its number."""
        path = self.folder / f"{self.cell.id}.jsonl"
        return windows(json_lines(path), self.clock_s)


def combined(
    cell: PlannedCell, parts: Sequence[ReplicaPart], settings: MeasurementSettings
) -> list[CellResult]:
    """Return the results of a cell; none when its parts are of several attempts.

    Args:
        parts: of all replicas.
    """
    if len({str(part.worker.get("attempt")) for part in parts}) != 1:
        return []
    overlap, run = _overlap([part.windows() for part in parts])
    found = []
    for phase in (True, False):
        of_phase = [part.result(context_prefill=phase) for part in parts]
        own = [one for one in of_phase if one is not None]
        if len(own) == len(parts):
            found.append(_of_phase(cell, parts, own, settings))
    attention: tuple[str, ...] = ()
    if overlap is not None and overlap < LEAST_OVERLAP:
        attention = (
            f"the replicas were under load at once for only {overlap:.0%} of run {run}: "
            "throughputs are summed as if for all of it",
        )
    times = _times(parts)
    return [
        one.model_copy(
            update={**times, "overlap": overlap, "attention": (*one.attention, *attention)}
        )
        for one in found
    ]


def _of_phase(
    cell: PlannedCell,
    parts: Sequence[ReplicaPart],
    own: Sequence[CellResult],
    settings: MeasurementSettings,
) -> CellResult:
    phase = own[0].key.context_prefill
    key = cell.key.model_copy(update={"context_prefill": phase})
    raw = tuple(dict.fromkeys(chain.from_iterable(one.raw for one in own)))
    reasons = [
        f"{part.node}: {one.reason}"
        for part, one in zip(parts, own, strict=True)
        if one.status != "ok"
    ]
    made = None
    if not reasons:
        data = _together(parts, [one.key for one in own], key, cell.runs)
        whole = benchy.parse(cell, data, benchy.Progress(), settings, raw=raw)
        made = next(one for one in whole if one.key == key)
    made = made or result(cell, key=key, reasons=reasons, raw=raw)
    shares = tuple(_share(part, one) for part, one in zip(parts, own, strict=True))
    return made.model_copy(update={"replicas": shares})


def _share(part: ReplicaPart, found: CellResult) -> ReplicaShare:
    return ReplicaShare(
        node=part.node,
        concurrency=part.cell.key.concurrency,
        status="ok" if found.status == "ok" else "failed",
        reason=found.reason,
        metrics=found.metrics,
        raw=found.raw,
    )


def _together(
    parts: Sequence[ReplicaPart], keys: Sequence[Any], key: Any, runs: int
) -> dict[str, Any]:
    """Return a result as llama-benchy would have written it for all replicas."""
    files = [read_json(part.folder / f"{part.cell.id}.json") for part in parts]
    known = [data for data in files if isinstance(data, dict)]  # as each part was read before
    entries = [
        next(e for e in data["benchmarks"] if isinstance(e, dict) and benchy.is_of(e, own))
        for data, own in zip(known, keys, strict=True)
    ]
    latencies = [number(data.get("latency_ms")) or 0.0 for data in known]
    size = keys[0].concurrency
    lists: dict[str, list[float]] = {}
    for name in (*benchy.TOTALS.values(), *benchy.OF_REQUESTS.values()):
        wanted = runs if name in benchy.TOTALS.values() else runs * size
        each = [_values(entry, name, size) for entry in entries]
        if any(len(values) != wanted for values in each):
            lists[name] = []
        elif name in benchy.TOTALS.values():
            lists[name] = [sum(of_run) for of_run in zip(*each, strict=True)]
        else:
            ranges = [slice(at, at + size) for at in range(0, wanted, size)]
            lists[name] = [value for one in ranges for values in each for value in values[one]]
    entry = {
        "prompt_size": key.prompt,
        "response_size": key.output,
        "context_size": key.depth,
        "concurrency": key.concurrency,
        "is_context_prefill_phase": key.context_prefill,
        **{name: {"values": values} for name, values in lists.items()},
    }
    return {"version": benchy.VERSION, "latency_ms": max(latencies), "benchmarks": [entry]}


def _values(entry: Mapping[str, Any], name: str, size: int) -> list[float]:
    """Return a replica's values; prefill as llama-benchy counts it with several requests.

    With one request at once it divides by the time without the latency, with several by all of the
    time until the last first token. A replica with one request of a cell's several would have a
    prefill that looks faster than that of one server with all of them.
    """
    if name != benchy.TOTALS["pp_tps"] or size > 1:
        return _list(entry, name)
    speeds, times, whole = (_list(entry, n) for n in ("pp_req_throughput", "est_ppt", "e2e_ttft"))
    if not len(speeds) == len(times) == len(whole) or not all(whole):
        return []
    return [s * t / w for s, t, w in zip(speeds, times, whole, strict=True)]


def _list(entry: Mapping[str, Any], name: str) -> list[float]:
    metric = entry.get(name)
    return numbers(metric.get("values")) if isinstance(metric, dict) else []


def windows(events: Iterable[Mapping[str, Any]], clock_s: float) -> dict[int, Window]:
    """Return when each run was under way, from the load generator's progress.

    Args:
        clock_s: to be taken off its times.
    """
    found: dict[int, Window] = {}
    run_of: dict[float, int] = {}
    for event in events:
        at, request = number(event.get("ts")), number(event.get("request_id"))
        if at is None or request is None:
            continue
        if event.get("type") == "request_start":
            run_of[request] = int(number(event.get("run_index")) or 0)
        elif event.get("type") != "request_end" or request not in run_of:
            continue
        run, at = run_of[request], at - clock_s
        first, last = found.get(run, (at, at))
        found[run] = (min(first, at), max(last, at))
    return found


def _overlap(each: Sequence[Mapping[int, Window]]) -> tuple[float | None, int]:
    """Return the smallest share of a run in which all were under load, and the run's number."""
    runs = set.intersection(*(set(one) for one in each))
    shares = {}
    for run in runs:
        of_run = [one[run] for one in each]
        whole = max(last for _, last in of_run) - min(first for first, _ in of_run)
        common = min(last for _, last in of_run) - max(first for first, _ in of_run)
        shares[run] = max(0.0, common / whole) if whole > 0 else 1.0
    worst = min(shares, key=lambda run: (shares[run], run), default=0)
    return shares.get(worst), worst


def _times(parts: Sequence[ReplicaPart]) -> dict[str, datetime | None]:
    """Return from when to when any replica was under load."""
    found: dict[str, datetime | None] = {}
    for name, choose in (("started", min), ("finished", max)):
        known = [number(part.worker.get(name)) for part in parts]
        times = [at - p.clock_s for at, p in zip(known, parts, strict=True) if at is not None]
        times = [at for at in times if moment(at) is not None]
        found[name] = moment(choose(times)) if times else None
    return found
