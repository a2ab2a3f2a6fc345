"""`bench suites`, `bench show` and `bench compare`: what people see and what programs get."""

from __future__ import annotations

import json

import pytest
from bench_runs import SLOWER, STEADY, answered, cell, key, record, served, setup
from json_schema import document
from program import invoke

from spark_cluster.bench.describe import text_of
from spark_cluster.bench.record import Prediction, Record
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, UsageError


@pytest.fixture
def put(tmp_path):
    """Write a run; return its folder."""

    def write(name: str, run: Record) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(run.model_dump_json())
        return str(folder)

    return write


def test_compare_two_runs(ask, put):
    a = put("a", record(cell(tg_tps=STEADY), cell(load=key(depth=9), tg_tps=STEADY)))
    b = put("b", record(cell(tg_tps=SLOWER), id="b"))
    said = ask("bench", "compare", a, b).stdout
    assert said.splitlines()[0] == "1 worse (figures of 1 cell)"
    assert "0.800" in said
    assert "not comparable, 1 cell: B has no cell pp2048-tg128-d9-c1" in " ".join(said.split())
    found = json.loads(ask("bench", "compare", a, b, "--json").stdout)
    assert found["comparison"]["rows"][0]["verdict"] == "worse"
    assert found["published"] is None


def test_a_baseline_for_ci(put, tmp_path):
    a, b = put("a", record(cell(tg_tps=STEADY))), put("b", record(cell(tg_tps=SLOWER)))
    other = put("c", record(cell(tg_tps=STEADY), setups=[setup(tp=2)]))

    def status(*words: str) -> int:
        return invoke("bench", "compare", *words, project=tmp_path).exit_code

    assert status(a, b) == 0
    assert status(a, b, "--baseline") == 1
    assert status(a, b, "--baseline", "--json") == 1
    assert status(b, a, "--baseline") == 0
    assert status(a, other, "--baseline") == 1, "nothing could be compared"


def test_sides_of_one_run(ask, put):
    both = [setup("s"), setup("t", variant="enforce-eager=true")]
    run = put("a", record(cell("s", tg_tps=STEADY), cell("t", tg_tps=SLOWER), setups=both))
    assert "1 worse" in ask("bench", "compare", f"{run}#s", f"{run}#t").stdout


def test_published_and_predicted(ask, put):
    prediction = Prediction(metric="tg_tps", key=key(), low=6.5, value=6.8, high=7.1)
    run = record(cell(tg_tps=STEADY), setups=[setup(predictions=(prediction,))])
    folder = put("a", run)
    said = ask("bench", "compare", folder, "--published", "--predicted").stdout
    assert "2 published figures measured again" in said
    assert "6.79 ± 0.00" in said
    assert "+1.8%" in said
    assert "1 of 1 predictions hold" in said
    every = ask("bench", "compare", folder, "--published", "--all", columns="200").stdout
    assert "merritt-gemma4-mtp.sweep.N4.acc" in every
    found = json.loads(ask("bench", "compare", folder, "--published", "--json").stdout)
    assert len(found["published"]["rows"]) + len(found["published"]["others"]) == 316


def test_what_compare_cannot_do(ask, put, tmp_path):
    run = put("a", record(cell(tg_tps=STEADY)))
    with pytest.raises(UsageError, match="one run is given"):
        ask("bench", "compare", run)
    with pytest.raises(UsageError, match="needs a second run"):
        ask("bench", "compare", run, "--published", "--baseline")
    with pytest.raises((UsageError, InvalidFile)):
        ask("bench", "compare", run, str(tmp_path / "nowhere"))
    (tmp_path / "a" / "run.json").write_text('{"format": "other"}')
    with pytest.raises(InvalidFile, match="format"):
        ask("bench", "show", run)


SEVERAL = record(
    cell(tg_tps=STEADY, pp_tps=[1500.0] * 5, ttfr_ms=[1300.0] * 5),
    cell(load=key(concurrency=4), tg_tps=STEADY, tg_tps_request=SLOWER),
    cell(load=key(depth=4096), status="failed"),
)
VISION = answered(kind="vision", status="failed", metrics={}, questions=(), reason="HTTP 400")
DRAFTED = cell(load=key(depth=1), tg_tps=STEADY, acceptance=[0.61], acceptance_length=[2.83])


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (SEVERAL, ["complete: 2 of 3 cells measured run a", "pp2048 tg128 d=0 c=4",
                   "failed: s.pp2048-tg128-d4096-c1: 2 of 5 requests failed"]),
        (record(served()), [" mean p50 p95 p99 ", "TTFT ms 45.00 41.00 77.00 98.00",
                            "ITL ms 12.50 12.00 19.00", "goodput", "1.25",
                            "pp2048 tg128 d=0 2 req/s"]),
        (record(answered(), VISION), ["one 2 of 2 810.0", "two-at-once 1 of 2 210.0 1,620", "0.75",
                                      'no tool was called; it says "[sun](x)"',
                                      "failed: s.vision: HTTP 400"]),
        (record(DRAFTED), ["accepted", "0.61", "a step", "2.83"]),
        (record(DRAFTED, status="stopped"), ["stopped: 1 of 1 begun cells measured run a",
                                             "attach RUN` continues it"]),
    ],
    ids=["loads", "percentiles and goodput", "answers", "acceptance", "stopped early"],
)  # fmt: skip
def test_show_a_run(ask, put, run, says):
    folder = put("a", run)
    said = " ".join(ask("bench", "show", folder).stdout.split())
    for text in says:
        assert text in said
    assert json.loads(ask("bench", "show", folder, "--json").stdout)["id"] == "a"


def test_compare_answers_requests_and_acceptance(ask, put):
    a = put("a", record(answered(*[1.0] * 5), served(), DRAFTED))
    b = put("b", record(answered(*[0.5] * 5), served(), DRAFTED, id="b"))
    said = ask("bench", "compare", a, b).stdout
    assert "worse" in said.splitlines()[0]
    for figure in ("score", "goodput req/s", "tokens a step"):
        assert figure in said
    none = put("none", record(answered(*[0.0] * 5), id="none"))
    assert ask("bench", "compare", none, none).exit_code == 0


def test_other_questions_are_not_compared(ask, put):
    runs = []
    for name, listed in (("a", ["one"]), ("b", ["one", "steps"])):
        made = record(answered(), id=name)
        tool = made.tool.model_copy(update={"settings": {"questions": listed}})
        runs.append(put(name, made.model_copy(update={"tool": tool})))
    said = ask("bench", "compare", *runs).stdout
    assert said.splitlines()[0] == "nothing could be compared"
    assert "questions:" in said


def test_what_calibrating_by_a_run_would_change(ask, put, tmp_path):
    recipe_text = text_of(load_recipe("gemma4-31b-fp8", Project(tmp_path)))
    loads = [key(depth=depth) for depth in (0, 8192, 16384)]
    cells = [cell(load=load, tg_tps=[6.2 - load.depth / 1e5] * 5) for load in loads]
    prediction = Prediction(metric="tg_tps", key=key(), low=6.5, value=6.8, high=7.1)
    predicted = setup(predictions=(prediction,))
    with_recipe = predicted.model_copy(update={"recipe_text": recipe_text})
    run, bare = (put(one.id, one) for one in (
        record(*cells, setups=[with_recipe]),
        record(cell(tg_tps=STEADY), setups=[predicted], id="b"),
    ))  # fmt: skip
    said = ask("bench", "compare", run, "--predicted").stdout
    assert "mean error 9.7%" in said
    assert "predict --calibrate with this run would change" in said
    assert "mean error over 3 points: " in said
    out = ask("bench", "compare", run, "--predicted", "--json").stdout
    assert "eta_dense" in document("bench-compare", out)["predicted"]["calibration"]["constants"]
    assert "has no use for this run" in ask("bench", "compare", bare, "--predicted").stdout
    out = ask("bench", "compare", bare, "--predicted", "--json").stdout
    assert document("bench-compare", out)["predicted"]["calibration"]["constants"] is None
