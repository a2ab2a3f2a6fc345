"""A cell of several replicas: what is summed, what is taken together, and what fails it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_cluster.bench import benchy
from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.reading import json_lines
from spark_cluster.bench.record import CellKey
from spark_cluster.bench.replica_results import ReplicaPart, combined, windows
from spark_cluster.bench.replica_split import share
from spark_cluster.bench.suite_schema import MeasurementSettings

DATA = Path(__file__).parents[1] / "data" / "benchy"
SETTINGS = MeasurementSettings()
CACHED = MeasurementSettings(prefix_caching=True)
CELL = PlannedCell("x2.c2", "x2", CellKey(prompt=64, output=8, concurrency=2), 3)


def told(**more: Any) -> dict[str, Any]:
    return {
        "status": 0,
        "attempt": "1",
        "clock_s": 0.0,
        "started": 100.0,
        "finished": 110.0,
        **more,
    }


def part(
    folder: Path, node: str, source: str = "ok", *, cell: PlannedCell = CELL,
    settings: MeasurementSettings = SETTINGS, change: Any = None, **more: Any,
) -> ReplicaPart:  # fmt: skip
    """A replica's part, of files that llama-benchy wrote."""
    into = folder / node / "raw"
    into.mkdir(parents=True)
    for kind in ("json", "jsonl"):
        shutil.copy(DATA / f"{source}.{kind}", into / f"{cell.id}.{kind}")
    if change is not None:
        data = json.loads((into / f"{cell.id}.json").read_text())
        change(data["benchmarks"])
        (into / f"{cell.id}.json").write_text(json.dumps(data))
    own = share(cell, 2)
    results = benchy.read_cell(own, into, settings, raw=(f"{node}/{cell.id}.json",))
    return ReplicaPart(node, own, told(**more), into, results)


def scaled(factor: float) -> Any:
    def change(benchmarks: list[dict[str, Any]]) -> None:
        for entry in benchmarks:
            for metric in entry.values():
                if isinstance(metric, dict):
                    metric["values"] = [value * factor for value in metric["values"]]

    return change


def test_throughputs_are_summed_run_by_run_and_times_are_those_of_all(tmp_path):
    parts = [part(tmp_path, "a"), part(tmp_path, "b", change=scaled(2.0), started=90.0)]
    (found,) = combined(CELL, parts, SETTINGS)
    assert found.status == "ok", found.reason
    assert (found.id, found.key, found.runs) == (CELL.id, CELL.key, 3)
    first = benchy.read_cell(share(replace(CELL, id="ok"), 2), DATA, SETTINGS)[0].metrics
    for name in ("tg_tps", "peak_tps"):
        assert found.metrics[name].values == pytest.approx([3 * v for v in first[name].values])
    for name in ("ttfr_ms", "e2e_ttft_ms", "tg_tps_request"):
        assert found.metrics[name].values == pytest.approx([1.5 * v for v in first[name].values])
    one = first["ttfr_ms"].values
    assert found.metrics["ttfr_ms"].percentiles["p50"] == pytest.approx(
        (max(one) + 2 * min(one)) / 2
    ), "of six requests, not of three means"
    assert found.raw == ("a/x2.c2.json", "b/x2.c2.json")
    assert found.started is not None
    assert found.finished is not None
    assert (found.started.timestamp(), found.finished.timestamp()) == (90.0, 110.0)
    assert [(s.node, s.concurrency, s.status) for s in found.replicas] == [
        ("a", 1, "ok"),
        ("b", 1, "ok"),
    ]
    assert found.replicas[0].metrics == first


def test_prefill_is_counted_as_with_several_requests_on_one_server(tmp_path):
    """The latency is taken off the time of a single request, not off those of several at once."""
    (found,) = combined(CELL, [part(tmp_path, "a"), part(tmp_path, "b")], SETTINGS)
    e2e = json.loads((DATA / "ok.json").read_text())["benchmarks"][0]["e2e_ttft"]["values"]
    tokens = 45  # of the prompt, by the server's own count
    wanted = [2 * tokens * 1e3 / ms for ms in e2e]
    assert found.metrics["pp_tps"].values == pytest.approx(wanted)
    alone = found.replicas[0].metrics["pp_tps"].mean
    assert found.metrics["pp_tps"].mean < alone


def test_both_phases_of_a_context(tmp_path):
    key = CellKey(prompt=64, output=8, depth=128, concurrency=2)
    raw = json.loads((DATA / "prefix.json").read_text())["benchmarks"]
    assert {e["context_size"] for e in raw} == {key.depth}, "the data are of this load"
    cell = replace(CELL, key=key, runs=len(raw[0]["ttfr"]["values"]))
    parts = [part(tmp_path, node, "prefix", cell=cell, settings=CACHED) for node in ("a", "b")]
    context, own = combined(cell, parts, CACHED)
    assert (context.id, own.id) == (f"{cell.id}-ctx", cell.id)
    assert context.key.context_prefill
    assert not own.key.context_prefill
    assert context.status == own.status == "ok", (context.reason, own.reason)


def test_one_that_failed_fails_the_cell_and_says_which(tmp_path):
    (found,) = combined(CELL, [part(tmp_path, "a"), part(tmp_path, "b", "http500")], SETTINGS)
    assert found.status == "failed"
    assert found.reason.startswith("b: ")
    assert "a: " not in found.reason
    assert found.metrics == {}
    assert [s.status for s in found.replicas] == ["ok", "failed"]
    assert found.replicas[0].metrics, "what the other one measured is kept as its own"


def test_parts_of_several_attempts_are_not_put_together(tmp_path):
    parts = [part(tmp_path, "a"), part(tmp_path, "b", attempt="2")]
    assert combined(CELL, parts, SETTINGS) == []


def test_runs_that_drifted_apart_are_an_attention(tmp_path):
    together = [part(tmp_path, "a"), part(tmp_path, "b")]
    (found,) = combined(CELL, together, SETTINGS)
    assert found.overlap == 1.0
    assert found.attention == ()
    runs = together[0].windows()
    first, last = runs[1]
    late = part(tmp_path / "late", "b", clock_s=-(last - first) / 2)
    (found,) = combined(CELL, [together[0], late], SETTINGS)
    assert found.status == "ok"
    assert found.overlap == pytest.approx(1 / 3, abs=0.05)
    (text,) = found.attention
    assert "at once for only" in text
    never = part(tmp_path / "never", "b", clock_s=1000.0)
    assert combined(CELL, [together[0], never], SETTINGS)[0].overlap == 0.0


def test_windows_are_those_of_the_first_replicas_clock():
    runs = windows(json_lines(DATA / "ok.jsonl"), 0.0)
    assert sorted(runs) == [1, 2, 3]
    assert all(first < last for first, last in runs.values())
    ahead = windows(json_lines(DATA / "ok.jsonl"), 5.0)
    assert ahead[1][0] == pytest.approx(runs[1][0] - 5.0)


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "request_end", "ts": 1.0, "request_id": 7}],
        [{"type": "request_start", "ts": "soon", "request_id": 7, "run_index": 1}],
        [{"type": "tokens", "ts": 1.0, "request_id": 7}],
        [{}],
    ],
)
def test_progress_that_says_nothing_of_a_run(events):
    assert windows(events, 0.0) == {}


@pytest.mark.parametrize("worker", [{"started": 1e300}, {"started": "x", "clock_s": "y"}])
def test_times_that_no_clock_shows(tmp_path, worker):
    parts = [part(tmp_path, "a"), replace(part(tmp_path, "b"), worker=told(**worker))]
    (found,) = combined(CELL, parts, SETTINGS)
    assert found.started is not None
    assert found.started.timestamp() == 100.0


def test_a_prefill_too_short_for_one_replica_is_none_of_all(tmp_path):
    def none(benchmarks: list[dict[str, Any]]) -> None:
        for name in ("pp_throughput", "pp_req_throughput"):
            benchmarks[0][name]["values"].pop()

    (found,) = combined(CELL, [part(tmp_path, "a"), part(tmp_path, "b", change=none)], SETTINGS)
    assert found.status == "ok"
    assert "pp_tps" not in found.metrics
    assert any("no prefill speed" in text for text in found.attention)
