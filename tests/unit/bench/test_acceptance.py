"""The acceptance of drafts in a cell, from the sampler's lines."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from bench_runs import cell, key
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.bench.record import CellResult
from spark_cluster.bench.telemetry import read_lines, with_telemetry

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()


def line(at: float, drafts: float, drafted: float, accepted: float) -> str:
    engine = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    return json.dumps({"format": 1, "time": NOON + at, "engine": engine})


def between(start: float, end: float, **changed: object) -> CellResult:
    moments = {
        name: datetime.fromtimestamp(NOON + at, UTC)
        for name, at in (("started", start), ("finished", end))
    }
    return cell(tg_tps=[7.0]).model_copy(update={**moments, **changed})


def told(*cells: CellResult, lines: list[str], more: list[str] | None = None):
    texts = ["\n".join(one) for one in (lines, more or [])]
    rows = [row for text in texts for row in read_lines("spark1", text)]
    found = with_telemetry(cells, rows, [], 1)
    return [
        tuple(
            one.metrics[name].mean if name in one.metrics else None
            for name in ("acceptance", "acceptance_length")
        )
        for one in found
    ]


def test_each_cell_has_its_own():
    """100 steps with 3 tokens drafted: 150 accepted in the first cell, 240 in the second."""
    lines = [line(0, 0, 0, 0), line(5, 60, 180, 90), line(11, 100, 300, 150),
             line(21, 200, 600, 390), line(30, 200, 600, 390)]  # fmt: skip
    assert told(between(1, 10), between(12, 20), lines=lines) == [
        (0.5, pytest.approx(2.5)),
        (pytest.approx(0.8), pytest.approx(3.4)),
    ]


def test_what_comes_after_a_cell_is_not_its_own():
    lines = [line(0, 0, 0, 0), line(11, 100, 300, 150), line(14, 500, 1500, 1500)]
    assert told(between(1, 10), lines=lines) == [(0.5, 2.5)]


def test_several_engines_are_added():
    first = [line(0, 0, 0, 0), line(9, 100, 300, 150)]
    second = [line(0, 7, 7, 7), line(9, 107, 307, 307)]
    assert told(between(1, 10), lines=first, more=second) == [(0.75, pytest.approx(3.25))]


def test_an_engine_that_was_started_anew():
    lines = [line(0, 900, 2700, 0), line(2, 0, 0, 0), line(9, 10, 30, 15)]
    assert told(between(1, 10), lines=lines) == [(0.5, 2.5)]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [line(0, 5, 15, 5)],
        [line(0, 5, 15, 5), line(9, 5, 15, 5)],
        [json.dumps({"format": 1, "time": NOON, "engine": {"running": 1.0}})],
        [json.dumps({"format": 2, "time": NOON})],
        ["", "{", "[1]", "null", '{"format": 1, "engine": 5}'],
        [line(0, 0, 0, 0), line(9, 1, 3, 4)],
    ],
    ids=["none", "one", "idle", "no drafter", "other format", "rubbish", "impossible"],
)
def test_where_there_is_nothing_to_tell(lines):
    assert told(between(1, 10), lines=lines) == [(None, None)]


def test_which_cells_get_none():
    lines = [line(0, 0, 0, 0), line(9, 100, 300, 150)]
    failed = between(1, 10, status="failed", reason="x")
    prefill = between(1, 10, key=key(depth=4096, context_prefill=True))
    assert told(failed, prefill, cell(tg_tps=[7.0]), lines=lines) == [(None, None)] * 3
    own = cell(acceptance=[0.9]).metrics
    assert told(between(1, 10, metrics=own), lines=lines) == [(0.9, None)]


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 4), max_size=8))
def test_it_is_always_a_share(samples):
    ordered = sorted(samples)
    lines = [line(*one) for one in ordered]
    for share, length in told(between(10, 1e5), lines=lines):
        assert share is None or 0 <= share <= 1
        assert length is None or length >= 1
