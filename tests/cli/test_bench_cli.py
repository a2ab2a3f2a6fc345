"""`bench suites`, `bench show` and `bench compare`: what people see and what programs get."""

from __future__ import annotations

import json

import pytest
from bench_runs import SLOWER, STEADY, cell, key, record, setup
from program import invoke

from spark_cluster.bench.record import Prediction, Record
from spark_cluster.errors import InvalidFile, UsageError


@pytest.fixture
def ask(tmp_path):
    """`ask("bench", "suites")`: what it prints, and its exit status; raises what it raises."""

    def run(*words: str, columns: str = "80"):
        return invoke(
            *words, project=tmp_path, columns=columns, catch_exceptions=False, standalone_mode=False
        )

    return run


@pytest.fixture
def put(tmp_path):
    """Write a run; return its folder."""

    def write(name: str, run: Record) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(run.model_dump_json())
        return str(folder)

    return write


def test_the_list_of_suites(ask, tmp_path):
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "mine.yaml").write_text("name: mine\ndescription: my own\n")
    (tmp_path / "suites" / "bad.yaml").write_text("name: bad\nprompts: [1]\n")
    said = ask("bench", "suites").stdout
    assert "mine (yours)" in said
    assert "did you mean 'prompt'?" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
    found = {s["name"]: s for s in json.loads(ask("bench", "suites", "--json").stdout)["suites"]}
    assert found["dual"]["valid"]
    assert not found["bad"]["valid"]


def test_a_suite_and_its_estimate(ask):
    said = ask("bench", "suites", "dual").stdout
    assert said.startswith("dual: 17 cells on 3 servers, about ")
    assert max(map(len, said.splitlines())) <= 80
    found = json.loads(ask("bench", "suites", "dual", "--json").stdout)
    assert found["nodes"] == 2
    assert [s["id"] for s in found["setups"]] == [
        "gemma4-31b-fp8-tp1",
        "gemma4-31b-fp8-tp2",
        "gemma4-31b-fp8-tp1-x2",
    ]
    assert 1200 < found["estimate"]["seconds"] < 7200


def test_a_suite_with_another_recipe(ask):
    said = ask("bench", "suites", "spark-arena-v2", "--recipe", "gemma4-31b-fp8").stdout
    assert "4 cells left out: needs 102,176 tokens" in " ".join(said.split())
    assert "no planned speed" in ask("bench", "suites", "lab").stdout
    with pytest.raises(UsageError, match="names no recipe"):
        ask("bench", "suites", "single-user")


def test_compare_two_runs(ask, put):
    a = put("a", record(cell(tg_tps=STEADY), cell(load=key(depth=9), tg_tps=STEADY)))
    b = put("b", record(cell(tg_tps=SLOWER), id="b"))
    said = ask("bench", "compare", a, b).stdout
    assert said.splitlines()[0] == "1 worse (figures of 1 cell)"
    assert "decode tok/s" in said
    assert "0.800" in said
    assert "not comparable, 1 cell: B has no cell pp2048-tg128-d9-c1" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
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
    foretold = Prediction(metric="tg_tps", key=key(), low=6.5, value=6.8, high=7.1)
    run = record(cell(tg_tps=STEADY), setups=[setup(predictions=(foretold,))])
    folder = put("a", run)
    said = ask("bench", "compare", folder, "--published", "--predicted").stdout
    assert "2 published figures measured again" in said
    assert "6.79 ± 0.00" in said
    assert "+1.8%" in said
    assert "1 of 1 predictions hold" in said
    assert max(map(len, said.splitlines())) <= 80
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


def test_show_a_run(ask, put):
    several = key(concurrency=4)
    run = put(
        "a",
        record(
            cell(tg_tps=STEADY, pp_tps=[1500.0] * 5, ttfr_ms=[1300.0] * 5),
            cell(load=several, tg_tps=STEADY, tg_tps_request=SLOWER),
            cell(load=key(depth=4096), status="failed"),
        ),
    )
    said = ask("bench", "show", run).stdout
    assert said.splitlines()[0] == "complete: 2 of 3 cells measured a"
    assert "2048 in, 128 out, 4 at once" in said
    assert "failed: s.pp2048-tg128-d4096-c1: 2 of 5 requests failed" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
    assert json.loads(ask("bench", "show", run, "--json").stdout)["id"] == "a"
