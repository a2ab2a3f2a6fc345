"""`predict speed` and `predict --calibrate` as a shell sees them."""

from __future__ import annotations

import json
import sys

import pytest
from cases import cases
from factories import put
from json_schema import document as fits

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
DENSE = "gemma4-31b-fp8"


@pytest.mark.parametrize(
    ("measured", "options", "said"),
    [
        (BENCHMARK, (), "--recipe NAME"),
        (BENCHMARK, ("--recipe", DENSE, "--output", "/proc/none/x.json"), "cannot write"),
        (BENCHMARK, ("--recipe", DENSE, "speed"), "give options after 'speed'"),
        (FAILED, ("--recipe", DENSE), "its requests failed"),
        (BENCHMARK, ("--recipe", "gemma4-26b-a4b-fp8-mtp"), "found 1 usable"),
        (BENCHMARK, ("--recipe", "lab-paris"), "times as slow"),
    ],
)
def test_calibrating_wrongly(run, tmp_path, measured, options, said):
    path = put(tmp_path / "runs.json", json.dumps({"benchmarks": [measured]}))
    status, _, err = run("predict", "--calibrate", str(path), *options)
    assert status in (1, 2)
    assert said in err
    assert not (tmp_path / "calibration.json").exists()
