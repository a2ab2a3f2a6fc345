"""Rows of telemetry: rates of counters, what is missing, files, and what a stretch of time says."""

import dataclasses
import json
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cases import cases, each_case
from hypothesis import given
from hypothesis import strategies as st
from parquet_rows import read_parquet

from spark_cluster.bench import telemetry
from spark_cluster.bench.telemetry import (
    COLUMNS,
    LineReader,
    TelemetryRow,
    attention,
    processes_path,
    read_lines,
    write_parquet,
    writer,
)
from spark_cluster.errors import UsageError

NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
LINE = cases(__file__, "sampled_line.json")


def line(at=0.0, **more):
    """A sampler's line, some seconds after noon; its counters have grown since then."""
    return json.dumps({**_grown(LINE, round(at)), "time": NOON.timestamp() + at,
                       "clock": 100.0 + at, **more})  # fmt: skip


def _grown(part, seconds):
    if isinstance(part, dict):
        if part.keys() == {"each second"}:
            return part["each second"] * seconds
        return {name: _grown(value, seconds) for name, value in part.items()}
    return [_grown(one, seconds) for one in part] if isinstance(part, list) else part


def rows(*lines):
    return read_lines("spark1", "\n".join(lines))


def test_rates_of_two_lines():
    first, second = rows(line(0, rdma_errors={"a": 5}), line(2, rdma_errors={"a": 8, "b": None}))
    assert first.generation_tps is first.rdma_rx_bytes_s is first.rdma_errors is None
    assert (first.running, first.kv_usage) == (4, 0.25)
    assert second.time == NOON + timedelta(seconds=2)
    expected = cases(__file__, "rates.json")
    assert {name: getattr(second, name) for name in expected} == expected


@pytest.mark.parametrize(
    "second",
    [line(1, clock=1.0), line(500), line(1, engine=None), line(1, engine={"generation_tokens": 1})],
    ids=["reboot", "gap", "no engine", "engine begun anew"],
)
def test_no_rate_over_a_break(second):
    first = line(0, engine={"generation_tokens": 700.0, "draft_tokens": 1.0})
    assert rows(first, second)[1].generation_tps is None
    assert rows(first, second)[1].acceptance is None


def test_memory_of_processes_stays_until_the_next_reading():
    held = [[7, "VLLM::Worker_TP0", 100], [8, "x", None]]
    found = rows(line(0), line(1, processes=held), line(2), line(3, processes=[]))
    assert [row.gpu_mem_mib for row in found] == [None, 100, 100, 0]
    assert [row.processes is None for row in found] == [True, False, True, False]
    told = found[1].to_dict()
    assert told["processes"][0] == {"pid": 7, "name": "VLLM::Worker_TP0", "used_mib": 100}
    assert told["time"] == "2026-11-22T12:00:01.000Z"
    json.dumps(told)


def test_lines_that_are_none():
    for text in ("", "Traceback (most recent call last):", "[1]", "null", '{"time": "x"}',
                 line(0, format=2), line(0, time=1e300), '{"format": 1}'):  # fmt: skip
        assert LineReader("spark1").row(text) is None, text


PARTS = ("gpu", "memory", "network", "rdma", "engine", "processes")


@given(st.dictionaries(st.sampled_from(PARTS), st.none() | st.just({})))
def test_every_part_may_be_missing(parts):
    assert len(rows(line(0, **parts), line(1), line(2, **parts))) == 3


# -- files ----------------------------------------------------------------------------------------


def test_parquet_and_back(tmp_path):
    path = tmp_path / "telemetry.parquet"
    held = [[7, "VLLM::Worker_TP0", 100], [8, "x", None]]
    written = rows(line(0), line(1, processes=held), line(2, gpu=None, engine=None))
    write_parquet(path, written)
    assert processes_path(path).exists()
    read = list(read_parquet(path))
    assert [r.processes for r in read] == [r.processes for r in written]
    for ours, theirs in zip(written, read, strict=True):
        for name in COLUMNS:
            value = getattr(theirs, name)
            kept = pytest.approx(getattr(ours, name)) if isinstance(value, float) else value
            assert kept == getattr(ours, name), name


def test_each_figure_has_a_column():
    names = {field.name for field in dataclasses.fields(TelemetryRow)}
    assert names - set(COLUMNS) == {"processes", "notes", "drafts"}


def test_json_lines_are_there_at_once(tmp_path):
    out = writer(tmp_path / "t.jsonl")
    out.write(rows(line(0))[0])
    assert json.loads((tmp_path / "t.jsonl").read_text())["node"] == "spark1"
    out.close()
    with pytest.raises(UsageError, match="exists"):
        writer(tmp_path / "t.jsonl")


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow") as caught:
        telemetry.writer(tmp_path / "t.parquet")
    assert "[bench]" in caught.value.hint


# -- what a stretch of time says ------------------------------------------------------------------

LINK = {"rdma_rx_bytes_s": 1e9, "rdma_tx_bytes_s": 1e9, "link_rx_bytes_s": 1e3}


def minute(node="spark1", seconds=(0, 61), **more):
    """A row each second of a minute under load."""
    usual = {"utilisation": 96.0, "sm_clock_mhz": 2411.0, "throttle": "", **LINK, **more}
    return [TelemetryRow(NOON + timedelta(seconds=s), node, **usual) for s in range(*seconds)]


def said(*parts, tp=1, nodes=("spark1",)):
    found = [row for part in parts for row in part]
    return attention(found, NOON, NOON + timedelta(seconds=60), nodes, tp)


@each_case(__file__, "attention.json")
def test_what_a_minute_says(case):
    """Of what is limited, lost or swapped under load, and nothing of what is usual."""
    nodes = case.get("nodes", ["spark1"])
    found = said(*(minute(**part) for part in case["rows"]), tp=len(nodes), nodes=nodes)
    assert found == tuple(case["said"])


@each_case(__file__, "roce_rates.json")
def test_roce(case):
    both = (minute(**case["rates"]), minute("spark2", **case["rates"]))
    assert said(*both, tp=2, nodes=("spark1", "spark2")) == (case["text"],)
    assert said(*both, nodes=("spark1", "spark2")) == (), "one node serves alone"
