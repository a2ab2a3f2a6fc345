"""The acceptance of drafts in a cell, from the sampler's lines."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from bench_runs import cell, key
from cases import each_case
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


def told(*cells: CellResult, nodes: Iterable[list[str]]):
    rows = [row for one in nodes for row in read_lines("spark1", "\n".join(one))]
    found = with_telemetry(cells, rows, [], 1)
    return [
        tuple(
            one.metrics[name].mean if name in one.metrics else None
            for name in ("acceptance", "acceptance_length")
        )
        for one in found
    ]


@each_case(__file__, "accepted_drafts.json")
def test_each_cell_has_the_acceptance_of_its_own_time(case):
    """A row is a moment, the steps until then, the tokens drafted and those accepted; a text is a
    line as it stands."""
    nodes = (
        [one if isinstance(one, str) else line(*one) for one in listed] for listed in case["nodes"]
    )
    found = told(*(between(*cell) for cell in case["cells"]), nodes=nodes)
    assert found == [pytest.approx(tuple(one)) for one in case["told"]]


def test_which_cells_get_none():
    lines = [line(0, 0, 0, 0), line(9, 100, 300, 150)]
    failed = between(1, 10, status="failed", reason="x")
    prefill = between(1, 10, key=key(depth=4096, context_prefill=True))
    assert told(failed, prefill, cell(tg_tps=[7.0]), nodes=[lines]) == [(None, None)] * 3
    own = cell(acceptance=[0.9]).metrics
    assert told(between(1, 10, metrics=own), nodes=[lines]) == [(0.9, None)]


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 4), max_size=8))
def test_it_is_always_a_share(samples):
    ordered = sorted(samples)
    lines = [line(*one) for one in ordered]
    for share, length in told(between(10, 1e5), nodes=[lines]):
        assert share is None or 0 <= share <= 1
        assert length is None or length >= 1
