"""llama-benchy and `vllm bench serve`: command lines, and results that are not believed too soon.

The files in tests/data/benchy were written by llama-benchy 0.4.0 against a stand-in server that
answered, answered HTTP 500, did so now and then, or said that the capital of France is Lyon.
"""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench_runs import suite_of
from cases import cases, each_row
from factories import make_node, make_recipe
from serve_plans import deployment_for

from spark_cluster.bench import generators, open_loop
from spark_cluster.bench.expansion import At, PlannedCell
from spark_cluster.bench.record import CellKey
from spark_cluster.bench.suite import MeasurementSettings, Slo, Suite

DATA = Path(__file__).parents[2] / "data" / "benchy"
BENCHY, GUIDE = generators.LlamaBenchy(), open_loop.GuideLlm()
SETTINGS = MeasurementSettings()
CACHED = MeasurementSettings(prefix_caching=True)


def at(settings: MeasurementSettings = SETTINGS) -> At:
    suite = Suite(name="s", settings=settings)
    deployment = deployment_for(make_recipe(), make_node("spark1"))
    return At(suite, deployment, "http://127.0.0.1:8000/v1", "/var/lib/x")


def cell(name: str = "ok", runs: int = 3, concurrency: int = 1, depth: int = 0) -> PlannedCell:
    key = CellKey(prompt=64, output=8, depth=depth, concurrency=concurrency)
    return PlannedCell(name, "setup", key, runs)


def sample(name: str, *, concurrency: int = 2, runs: int = 3, depth: int = 0):
    """A sample's results, read as a run reads them."""
    suite = Suite(name="s", settings=CACHED if depth else SETTINGS)
    files = {**texts(DATA), f"{name}.log": (DATA / f"{name}.out").read_text()}
    return generators.of(suite).results(suite, cell(name, runs, concurrency, depth), files)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.json*")}


def test_a_good_result():
    (found,) = sample("ok", concurrency=1)
    assert (found.status, found.reason, found.attention) == ("ok", "", ())
    assert found.metrics["tg_tps"].mean == pytest.approx(275.847, abs=0.01)
    assert len(found.metrics["tg_tps"].values) == 3
    assert found.metrics["ttfr_ms"].mean < 100
    assert set(found.metrics) == {*generators.OF_RUNS, *generators.OF_REQUESTS}


@each_row(__file__, "generators.json", "failures of llama-benchy")
def test_what_failed_although_the_exit_status_was_0(name, reasons):
    (found,) = sample(name)
    assert found.status == "failed"
    assert name == "some" or found.metrics == {}
    assert [reason for reason in reasons if reason not in found.reason] == []


def test_the_prefill_of_the_context_is_a_cell_of_its_own():
    context, main = sample("prefix", concurrency=1, runs=2, depth=128)
    assert (context.id, main.id) == ("prefix-ctx", "prefix")
    assert context.key.context_prefill
    assert not main.key.context_prefill
    assert context.status == main.status == "ok"
    assert context.metrics["pp_tps"].mean == pytest.approx(2198.56, abs=0.01)


def good() -> dict:
    return json.loads((DATA / "ok.json").read_text())


def read(data, **changed):
    return generators.benchy_results(cell(**changed), data, generators.Requests(), SETTINGS)[0]


@each_row(__file__, "generators.json", "other documents")
def test_another_document_is_a_failure(changed, reason):
    assert reason in read({**good(), **changed}).reason
    assert "no such benchmark" in read(good(), concurrency=4).reason


def test_a_value_that_is_no_number_counts_as_dropped():
    data = good()
    data["benchmarks"][0]["tg_throughput"]["values"][1] = math.nan
    assert "tg_throughput has 2 of 3 values" in read(data).reason


def test_a_response_sooner_than_the_latency_leaves_only_the_prefill_out():
    data = good()
    for name in ("pp_throughput", "pp_req_throughput"):
        data["benchmarks"][0][name] = None
    found = read(data)
    assert found.status == "ok"
    assert "pp_tps" not in found.metrics
    assert "sooner than the latency (44.8 ms)" in found.attention[0]


def test_requests_of_a_run_are_one_value():
    data = good()
    entry = data["benchmarks"][0]
    entry["concurrency"] = 2
    for field in generators.OF_REQUESTS.values():
        entry[field]["values"] = [1.0, 3.0, 2.0, 4.0, 10.0, 20.0]
    metric = read(data, concurrency=2).metrics["ttfr_ms"]
    assert metric.values == (2.0, 3.0, 15.0)
    assert metric.percentiles["p50"] == 3.5


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": NaN', "null"])
def test_a_file_that_was_cut_is_a_failure(text):
    suite = Suite(name="s")
    (found,) = generators.of(suite).results(suite, cell(), {"ok.json": text})
    assert found.status == "failed"


def test_short_answers_are_a_failure_where_the_length_is_fixed():
    lines = (DATA / "ok.jsonl").read_text().replace('"total_tokens":8', '"total_tokens":5')
    torn = ['{"schema": "llama-ben', "[]", "null", ""]
    progress = generators.read_progress([*lines.splitlines(), *torn])
    (found,) = generators.benchy_results(cell(), good(), progress, SETTINGS)
    assert "3 of 3 answers were shorter" in found.reason
    free = MeasurementSettings(exact_output=False)
    assert generators.benchy_results(cell(), good(), progress, free)[0].status == "ok"


def test_the_command_line():
    words = BENCHY.arguments(at(CACHED), cell("c", 5, 4, 4096))
    text = " ".join(words)
    assert "--pp 64 --tg 8 --depth 4096 --concurrency 4 --runs 5" in text
    assert "--enable-prefix-caching --exact-tg --extra-body temperature=0" in text
    assert "--save-result /var/lib/x/raw/c.json --format json" in text
    assert "--no-cache" in BENCHY.arguments(at(), cell())
    free = MeasurementSettings(temperature=None, exact_output=False, coherence=False)
    others = BENCHY.arguments(at(free), cell())
    assert "--skip-coherence" in others
    assert not {"--extra-body", "--exact-tg", "--api-key"} & set(others)


def test_the_launcher_gives_it_a_text_for_its_prompts(tmp_path):
    """llama-benchy finds a book in its cache before it downloads it."""
    package = tmp_path / "llama_benchy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import pathlib, sys\ndef main():\n    print(sys.argv[1:])\n"
        "    for one in (pathlib.Path.home() / '.cache/llama-benchy').iterdir():\n"
        "        print(one.read_text())\n"
    )
    (tmp_path / "book.txt").write_text("once")
    env = {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path / "home")}
    env[generators.BOOK] = str(tmp_path / "book.txt")
    argv = [sys.executable, "-c", generators.LAUNCHER, "--pp", "1"]
    for _ in range(2):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == "['--pp', '1']\nonce\n"


# -- vllm bench serve ------------------------------------------------------------------------------


RATE = PlannedCell(
    "open", "setup", CellKey(prompt=512, output=64, concurrency=0, request_rate=2), 2, requests=4
)
SLO = Slo(ttft_ms=500, tpot_ms=50, itl_ms=100)


def served(**changed):
    """A result as vLLM writes it: each time has a mean of 40 ms and percentiles above it."""
    times = {"mean": 40.0, **{f"p{p}": 40.0 + p for p in open_loop.PERCENTILES}}
    named = {
        f"{figure}_{name}_ms": value
        for name in ("ttft", "tpot", "itl", "e2el")
        for figure, value in times.items()
    }
    return {**cases(__file__, "generators.json")["served"], **named, **changed}


def test_an_open_loop():
    found = open_loop.parse(RATE, [served(), served(request_goodput=1.7)], SLO)
    assert found.status == "ok"
    assert found.metrics["goodput"].values == (1.5, 1.7)
    assert found.metrics["ttft_ms"].percentiles["p99"] == 139.0
    assert found.metrics["acceptance"].mean == pytest.approx(0.76)
    assert found.attention == ("99 % of gaps between tokens are under 139 ms; the limit is 100 ms",)


def test_what_vllm_writes():
    """Files of vLLM 0.32's own program, against the same stand-in server."""
    folder = DATA.parent / "vllm_bench"
    load = CellKey(prompt=64, output=8, concurrency=0, request_rate=20)
    suite = Suite.model_validate({"name": "s", "tool": "vllm-bench", "slo": SLO.model_dump()})

    def read(name):
        planned = PlannedCell(name, "s", load, 1, requests=6)
        (result,) = generators.of(suite).results(suite, planned, texts(folder))
        return result

    found = read("open")
    assert (found.status, found.attention) == ("ok", ())
    assert found.metrics["goodput"].mean == pytest.approx(16.699, abs=0.001)
    assert set(found.metrics["e2el_ms"].percentiles) == {"p5", "p50", "p90", "p95", "p99"}
    assert "acceptance" not in found.metrics
    failed = read("some")
    assert failed.status == "failed"
    assert "of 6 requests were completed: " in failed.reason


@each_row(__file__, "generators.json", "failures of vLLM")
def test_what_fails(data, reason):
    second = served(**data) if isinstance(data, dict) else data
    found = open_loop.parse(RATE, [served(), second], SLO)
    assert found.status == "failed"
    assert reason in found.reason


def test_a_server_that_does_not_keep_up():
    slow = served(request_throughput=0.5)
    assert "kept up with 0.50 of 2 requests" in open_loop.parse(RATE, [slow, slow]).attention[0]


# -- guidellm --------------------------------------------------------------------------------------


def guided(name, runs=1, requests=6):
    """A result that GuideLLM 0.8.1 wrote, against its own server for tests."""
    suite = suite_of(tool="guidellm", prompt=[64], output=[8])
    load = CellKey(prompt=64, output=8, concurrency=2)
    planned = PlannedCell(name, "s", load, runs, requests=requests)
    files = {**texts(DATA.parent / "guidellm"), f"{name}.log": "said"}
    (found,) = generators.of(suite).results(suite, planned, files)
    return found


def test_what_guidellm_writes():
    found = guided("ok")
    assert (found.status, found.reason, found.attention) == ("ok", "", ())
    assert set(found.metrics) == {*open_loop.TIMES, *open_loop.RATES}
    assert found.metrics["itl_ms"].mean == pytest.approx(18.83, abs=0.01)
    assert found.metrics["e2el_ms"].percentiles["p50"] == pytest.approx(245.9, abs=0.1)
    after_first = found.metrics["e2el_ms"].mean - found.metrics["ttft_ms"].mean
    assert found.metrics["tpot_ms"].mean == pytest.approx(after_first / 7, rel=0.05), "of 8 tokens"
    assert set(found.metrics["ttft_ms"].percentiles) == {"p5", "p50", "p90", "p95", "p99"}
    assert "6 of 7 requests were completed" in guided("ok", requests=7).reason
    missing = guided("ok", runs=2)
    assert "run 2: it wrote no result (ok.2.json); it said: said" in missing.reason


def test_what_failed_says_guidellm_too():
    found = guided("failed")
    assert found.status == "failed"
    assert "of 6 requests were completed: " in found.reason
    assert found.metrics == {}, "its report has zeros for what never happened"


@pytest.mark.parametrize("data", [{}, {"metadata": 7}, {"metadata": {"guidellm_version": "0.5.0"}}])
def test_a_report_of_another_version_or_shape(data):
    why = GUIDE.as_vllm(data)
    assert "expected 0.8.1" in why
    own = {"metadata": {"guidellm_version": "0.8.1"}}
    for benchmarks in (None, [], [{"metrics": []}], [{"requests": {"errored": 7}}]):
        found = open_loop.parse(RATE, [GUIDE.as_vllm({**own, "benchmarks": benchmarks})])
        assert found.status == "failed"


@pytest.mark.parametrize("huge", [10**400, 1e308], ids=["no float", "no sum"])
def test_a_figure_that_nothing_has_counts_as_missing(huge):
    """A load generator, and the server that it measures, may write anything."""
    told = {name: {"successful": {"mean": huge}} for name, _ in GUIDE.about["times"].values()}
    told["requests_per_second"] = {"successful": {"mean": huge}}
    report = {"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [{"metrics": told}]}
    found = open_loop.parse(RATE, [GUIDE.as_vllm(report)] * 2)
    assert "request_throughput has no value" in found.reason
    assert "mean_ttft_ms has no value" in found.reason


def test_the_command_line_of_guidellm():
    where = dataclasses.replace(at(), settings=SimpleNamespace(path="/venv"))
    how = GUIDE.measurement(where, RATE)
    program, first, *words = how.runs[1].argv
    given = {
        name.removeprefix("--"): json.loads(value)
        for name, value in zip(words[::2], words[1::2], strict=False)
    }
    assert (program, first) == ("/venv/bin/guidellm", "run")
    assert given["profile"] == {"kind": "poisson", "rate": [2.0]}
    assert given["constraint"]["count"] == 4
    assert given["seed"]["value"] == 2
    assert given["output"]["path"] == "/var/lib/x/raw/open.2.json"
    assert given["backend"]["target"] == "http://127.0.0.1:8000"
    assert given["backend"]["extras"] == {"body": {"ignore_eos": True, "temperature": 0}}
    assert how.env["GUIDELLM__MAX_WORKER_PROCESSES"] == "1", "several workers draw the same gaps"
    closed = GUIDE.measurement(where, cell(concurrency=4)).runs[0].argv
    assert '{"kind": "concurrent", "streams": [4]}' in closed


def test_a_value_is_one_word_whatever_is_in_it():
    """A record's recipe, which may be somebody else's, names the model."""
    suite = Suite(name="s", recipes=["r"])
    where = dataclasses.replace(at(), suite=suite, base_url='x --no-cache\n"{{ 7 * 7 }}')
    words = BENCHY.arguments(where, cell())
    assert words[:2] == ["--base-url", 'x --no-cache\n"{{ 7 * 7 }}']
    whole = dataclasses.replace(where, settings=SimpleNamespace(path="/venv"))
    argv = GUIDE.measurement(whole, cell()).runs[0].argv
    assert json.loads(argv[argv.index("--backend") + 1])["target"] == where.base_url
