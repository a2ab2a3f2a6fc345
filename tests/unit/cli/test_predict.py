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


def test_a_recipe(run):
    status, out, _ = run("predict", "speed", "--recipe", "gemma4-31b-nvfp4", "--json")
    found = fits("predict-speed", out)
    assert status == 0
    assert (found["quantization"], found["kv_dtype"], found["tp"]) == ("nvfp4", "fp8", 1)
    assert found["decode_tok_s"]["expected"] == pytest.approx(7.0, rel=0.03)
    assert found["decode_tok_s"]["roofline"] == pytest.approx(8.6, rel=0.02)
    assert found["bytes_per_token"] == pytest.approx(32.16e9, rel=0.01)
    assert found["speculative"] is None
    assert found["context"] == 1024, "as in plan and recipes list"


def test_a_model_and_a_folder(run, tmp_path):
    put(tmp_path / "mine/config.json", json.dumps(DATA["llama-8b"]))
    for model in ("meta-llama/Llama-3.1-8B-Instruct", "./mine", "mine"):
        options = ("--quantization", "fp8", "--kv-dtype", "fp8", "--tp", "2", "--json")
        status, out, _ = run("predict", "speed", "--model", model, *options)
        assert status == 0
        found = json.loads(out)
        assert found["bytes_per_token"] == pytest.approx(8.1e9, rel=0.02)
        assert "a model that was not measured" in found["basis"]["decode"]


def test_what_does_not_fit_gets_no_speed(run, tmp_path):
    folder = put(tmp_path / "large/config.json", json.dumps(DATA["llama-405b"])).parent
    status, out, _ = run("predict", "speed", "--model", str(folder), "--json")
    assert status == 0
    found = json.loads(out)
    assert found["fits"] is False
    assert found["decode_tok_s"] is None
    assert found["prefill_tok_s"] is None
    assert "the weights take" in found["why_not"]
    _, out, _ = run("predict", "speed", "--model", str(folder))
    assert "does not fit" in out
    assert "tok/s" not in out


def test_drafting_as_asked(run):
    model = ("--model", "google/gemma-4-26B-A4B-it", "--quantization", "fp8", "--json")
    options = ("--draft-tokens", "4", "--acceptance", "0.91,0.90,0.89,0.85")
    status, out, _ = run("predict", "speed", *model, *options)
    assert status == 0
    found = fits("predict-speed", out)["speculative"]
    assert found["tokens_per_step"] == 4.08
    assert found["decode_tok_s"]["expected"] == pytest.approx(80, rel=0.05)
    _, out, _ = run("predict", "speed", *model, "--draft-tokens", "4", "--accepted-share", "0.76")
    assert json.loads(out)["speculative"]["tokens_per_step"] == 4.04


OSS = ("--model", "openai/gpt-oss-120b", "--kv-dtype", "fp8", "--tp", "2", "--prompt", "2048")


def test_an_image_that_quantizes_layers_when_it_loads(run):
    """73.18 tokens/s, 8,521 tokens/s of the prompt (source: llama-benchy)."""
    layers = ("--mxfp4-layers", "moe,qkv,o,lm_head")
    found, stock = (
        json.loads(run("predict", "speed", *OSS, *more, "--json")[1]) for more in (layers, ())
    )
    assert found["decode_tok_s"]["expected"] == pytest.approx(73.18, rel=0.05)
    assert found["prefill_tok_s"]["low"] < 8521 < found["prefill_tok_s"]["high"]
    assert stock["decode_tok_s"]["expected"] < 0.8 * found["decode_tok_s"]["expected"]
    assert found["measured"] is not None
    assert stock["measured"] is None, "nobody measured it without the layers"


def test_the_kind_of_drafter_says_what_is_usually_accepted(run):
    model = ("--model", "nvidia/Qwen3.6-35B-A3B-NVFP4", "--draft-tokens", "3", "--json")
    by = {
        method: json.loads(run("predict", "speed", *model, *options)[1])["speculative"]
        for method, options in {
            "": (),
            "mtp": ("--draft-method", "mtp"),
            "dspark": ("--draft-method", "dspark"),
        }.items()
    }
    assert by[""] == by["mtp"]
    assert by["dspark"]["tokens_per_step"] < by["mtp"]["tokens_per_step"]


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


def test_a_run_whose_requests_all_failed(run, tmp_path):
    path = tmp_path / "failed.json"
    nothing = {**BENCHMARK, "tg_req_throughput": None, "ttfr": None}
    path.write_text(json.dumps({"benchmarks": [nothing]}))
    status, _, err = run("predict", "--calibrate", str(path), "--recipe", "gemma4-31b-fp8")
    assert status == 2
    assert "its requests failed" in err
    assert not (tmp_path / "calibration.json").exists()


def test_decode_with_a_drafter_calibrates_nothing(run, results):
    recipe = ("--recipe", "gemma4-26b-a4b-fp8-mtp")
    status, _, err = run("predict", "--calibrate", str(results), *recipe)
    assert status == 2
    assert "Traceback" not in err


def test_runs_of_a_toy_are_refused(run, results):
    status, _, err = run("predict", "--calibrate", str(results), "--recipe", "lab-paris")
    assert status == 2
    assert "times as slow" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--recipe NAME"),
        (("--recipe", "gemma4-31b-fp8", "--output", "/proc/none/x.json"), "cannot write"),
        (("--recipe", "gemma4-31b-fp8", "speed"), "give options after 'speed'"),
    ],
)
def test_calibrating_wrongly(run, results, options, said):
    status, _, err = run("predict", "--calibrate", str(results), *options)
    assert status in (1, 2)
    assert said in err


def test_a_broken_calibration_is_named(run, tmp_path):
    (tmp_path / "calibration.json").write_text("{}")
    status, _, err = run("predict", "speed", "--recipe", "gemma4-31b-nvfp4")
    assert status == 2
    assert "calibration.json" in err
    assert "remove it" in err
