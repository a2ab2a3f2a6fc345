"""`predict speed`, `predict kv` and `predict --calibrate` as a shell sees them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases, each_row
from fabric_results import save
from factories import put
from gpu_runs import runs
from json_schema import document as fits

from spark_cluster.bench.fabric_run import all_reduce
from spark_cluster.errors import UsageError
from spark_cluster.plan.estimate import Constants, read_constants

CHECKOUT = Path(__file__).parents[3]
DATA = cases(__file__, "predict.json")
BENCHMARK = DATA["benchmark"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A scratch project, and a home without models."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def results(tmp_path):
    depths = {"context_size": 16384, "prompt_size": 2048}
    deep = {**BENCHMARK, **depths, "tg_req_throughput": {"values": [6.3]}, "ttfr": None}
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"version": "0.4.0", "benchmarks": [BENCHMARK, deep]}))
    return path


def test_calibrate_and_predict_with_it(run, results, tmp_path):
    speed = ("predict", "speed", "--recipe", "gemma4-31b-fp8", "--context", "2112", "--json")
    before = json.loads(run(*speed)[1])
    status, out, _ = run("predict", "--calibrate", str(results), "--recipe", "gemma4-31b-fp8")
    assert status == 0
    assert "eta_dense" in out
    assert "written to calibration.json" in out
    document = json.loads((tmp_path / "calibration.json").read_text())
    assert document["points"] == 3
    assert document["mean_error"]["after"] < document["mean_error"]["before"]
    assert list(tmp_path.glob(".calibration*")) == []
    after = json.loads(run(*speed)[1])
    assert after["decode_tok_s"]["expected"] < before["decode_tok_s"]["expected"]
    assert after["decode_tok_s"]["expected"] == pytest.approx(6.6, rel=0.02)
    assert "calibrated to 3 points of your own" in after["basis"]["decode"]


def test_without_the_libraries_it_says_what_to_install(run, results, tmp_path, monkeypatch):
    for name in ("numpy", "scipy"):  # an entry of None is what an import that fails leaves
        monkeypatch.setitem(sys.modules, name, None)
    status, _, err = run("predict", "--calibrate", str(results), "--recipe", "gemma4-31b-fp8")
    assert status == 1
    assert "needs numpy and scipy" in err
    assert "pipx install --force '.[calibrate]'" in err
    assert not (tmp_path / "calibration.json").exists()
    assert run("predict", "speed", "--recipe", "gemma4-31b-fp8")[0] == 0


def test_calibrate_as_json_to_another_file(run, results, tmp_path):
    options = ("--model", "google/gemma-4-31B-it", "--quantization", "fp8", "--json")
    target = tmp_path / "mine.json"
    status, out, _ = run("predict", "--calibrate", str(results), *options, "--output", str(target))
    assert status == 0
    assert fits("predict-calibrate", out)["file"] == str(target)
    assert json.loads(target.read_text())["constants"] == json.loads(out)["constants"]
    assert not (tmp_path / "calibration.json").exists()


def test_calibrate_several_files_with_what_was_run_in_the_rows(run, tmp_path):
    header = "metric,value,context,tp,model,quantization\n"
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text(
        f"{header}decode_tok_s,6.9,144,1,google/gemma-4-31B-it,fp8\n"
        "decode_tok_s,35.8,500,1,google/gemma-4-26B-A4B-it,fp8\n"
    )
    two.write_text(f"{header}decode_tok_s,11.9,144,2,google/gemma-4-31B-it,fp8\n")
    status, out, _ = run("--json", "predict", "--calibrate", str(one), "--calibrate", str(two))
    assert status == 0
    assert fits("predict-calibrate", out)["points"] == 3
    assert json.loads(out)["files"] == ["one.csv", "two.csv"]


FAILED = {**BENCHMARK, "tg_req_throughput": None, "ttfr": None}


@each_row(__file__, "predict.json", "wrong_calibrations")
def test_calibrating_wrongly(run, tmp_path, options, said):
    measured = FAILED if "failed" in said else BENCHMARK
    path = put(tmp_path / "runs.json", json.dumps({"benchmarks": [measured]}))
    status, _, err = run("predict", "--calibrate", str(path), *options.split())
    assert status in (1, 2)
    assert said in err
    assert not (tmp_path / "calibration.json").exists()


def test_a_drafter_takes_its_part_of_the_cache(ask, tmp_path):
    """Published log: 1,316,513 tokens in 47.65 GiB with MTP-4 (styles01, 27 July 2026)."""
    rows = json.loads((CHECKOUT / "benchmarks/predictions/shapes.json").read_text())["models"]
    (qwen,) = (row["config"] for row in rows if row["name"] == "Qwen/Qwen3.6-27B")
    put(tmp_path / "qwen/config.json", json.dumps(qwen))
    words = f"predict kv --model {tmp_path}/qwen --kv-dtype fp8 --kv-gib 47.65 --device gpu"
    words += " --max-model-len 262144 --vllm-version 0.23.1 --prefix-caching"
    drafts = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 4}')
    with_mtp, without = (
        fits("predict-kv-device", ask("--json", *words.split(), *more).stdout)
        for more in (drafts, ())
    )
    assert (with_mtp["tokens"], with_mtp["max_concurrency"]) == (1_316_513, 5.02)
    assert without["tokens"] > 1.1 * with_mtp["tokens"], "without it too many"


# --- with what `bench fabric` measured ------------------------------------------------------------


def speed(ask, tp: str) -> dict[str, Any]:
    words = ("predict", "speed", "--recipe", "gemma4-31b-fp8", "--tp", tp)
    # The group's own --json stands before the subcommand.
    return json.loads(ask("--json", *words).stdout)


def test_the_measured_link_replaces_the_assumed_one(ask, tmp_path):
    before = {tp: speed(ask, tp) for tp in ("1", "2")}
    folder = save(tmp_path / "fabric")
    assert "allreduce_us" in ask("predict", "--calibrate", folder).stdout
    out = ask("predict", "--calibrate", f"{folder}/fabric.json", "--json").stdout
    found = fits("predict-calibrate", out)
    assert found["measured"] == ["allreduce_us", "allreduce_low_us", "allreduce_high_us", "link"]
    assert found["points"] == 0
    after = {tp: speed(ask, tp) for tp in ("1", "2")}
    assert after["2"]["decode_tok_s"]["expected"] > before["2"]["decode_tok_s"]["expected"]
    assert after["2"]["ttfr_ms"]["expected"] < before["2"]["ttfr_ms"]["expected"]
    assert after["1"]["decode_tok_s"] == before["1"]["decode_tok_s"], "one node has no link"
    constants = read_constants(tmp_path / "calibration.json")
    assert (constants.allreduce_us, constants.allreduce_low_us) == (40, 36)
    assert constants.allreduce_high_us == Constants().allreduce_high_us
    assert constants.link == pytest.approx(22e9, rel=1e-3)
    assert "your own link as measured" in constants.basis
    assert "fitted to published runs" in constants.basis


def test_a_link_that_was_measured_between_four_nodes(ask, tmp_path):
    """What a small all-reduce takes is divided by its exchanges; a large one has 1.5 times more."""
    ask("predict", "--calibrate", save(tmp_path / "fabric", token_s=100e-6, count=4))
    constants = read_constants(tmp_path / "calibration.json")
    assert constants.allreduce_us == pytest.approx(50)
    assert constants.link == pytest.approx(22e9, rel=1e-3)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"backend": "gloo"}, "measured with gloo on CPUs"),
        ({"allreduce": (all_reduce(8, (4e-5,), 2),)}, "message sizes of its model"),
    ],
)
def test_figures_that_say_nothing_of_the_link_are_refused(ask, tmp_path, measured, said):
    with pytest.raises(UsageError, match=said):
        ask("predict", "--calibrate", save(tmp_path / "f", **measured))
    assert not (tmp_path / "calibration.json").exists()


# --- with the start-up log of a server ------------------------------------------------------------


RUNS = {run.name: run for run in runs() if run.lines}

BF16 = "0.26.0 tp2-mp-g31-bf16"


def log(folder: Path, name: str, first: str = "") -> str:
    return str(put(folder / "server.log", f"{first}\n{RUNS[name].log}"))


def runtime(ask) -> float:
    words = ("plan", "gemma4-31b-fp8", "--tp", "2", "--offline", "--json")
    return float(json.loads(ask(*words).stdout)["runtime_gib"])


def test_plans_reserve_what_the_server_logged(ask, tmp_path):
    before = runtime(ask)
    said = ask("predict", "--calibrate", log(tmp_path, BF16)).stdout
    assert "runtime_gib" in said
    assert "0.33" in said
    constants = read_constants(tmp_path / "calibration.json")
    assert constants.runtime_gib == pytest.approx(0.26 + 0.07)
    assert "the memory that your own servers logged" in constants.basis
    assert "link" not in constants.basis
    assert before > 5
    assert runtime(ask) == pytest.approx(0.33, abs=0.01)


def test_a_larger_batch_is_taken_into_account(ask, tmp_path):
    first = "Chunked prefill is enabled with max_num_batched_tokens=8192."
    ask("predict", "--calibrate", log(tmp_path, "0.26.0 gptoss-bf16-eager", first))
    found = read_constants(tmp_path / "calibration.json").runtime_gib
    grows = 0.6 / (65536 - 2048) * (8192 - 2048)
    assert found == pytest.approx(3.38 + 0.22 - grows, abs=0.001)


TINY = (
    "Actual usage is 0.0 GiB for weight, 0.04 GiB for peak activation, 0.06 GiB for non-torch "
    "memory, and 0.0 GiB for CUDAGraph memory.\nmax_num_batched_tokens=8192\n"
)


def test_a_tiny_models_memory_is_left_out(ask, tmp_path):
    tiny = str(put(tmp_path / "tiny.log", TINY))
    said = ask("predict", "--calibrate", tiny, "--calibrate", log(tmp_path, BF16)).stdout
    assert "tiny.log: runtime_gib: logged 0.042 GiB, expected 0.1 to 60" in said
    assert read_constants(tmp_path / "calibration.json").runtime_gib == pytest.approx(0.33)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RUNS["0.26.0 g26-fp8-kvfp8-eager"].log, "Actual usage is"),
        (TINY, r"no usable figures in .*\n.*logged 0.042 GiB"),
    ],
)
def test_a_log_that_tells_nothing_of_use_is_no_calibration(ask, tmp_path, text, said):
    path = put(tmp_path / "server.log", text)
    with pytest.raises(UsageError, match=said):
        ask("predict", "--calibrate", str(path))
    assert not (tmp_path / "calibration.json").exists()
