"""`predict --calibrate` with the start-up log of a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories import put
from gpu_runs import runs

from spark_cluster.errors import UsageError
from spark_cluster.plan.estimate import read_constants

RUNS = {run.name: run for run in runs() if run.lines}

BF16 = "0.26.0 tp2-mp-g31-bf16"


def log(folder: Path, name: str, first: str = "") -> str:
    return str(put(folder / "server.log", f"{first}\n{RUNS[name].log}"))


def runtime(ask) -> float:
    words = ("plan", "gemma4-31b-fp8", "--tp", "2", "--offline", "--json")
    return float(json.loads(ask(*words).stdout)["runtime_gib"])


def test_plans_reserve_what_the_server_logged(ask, tmp_path: Path) -> None:
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


def test_a_larger_batch_is_taken_into_account(ask, tmp_path: Path) -> None:
    first = "Chunked prefill is enabled with max_num_batched_tokens=8192."
    ask("predict", "--calibrate", log(tmp_path, "0.26.0 gptoss-bf16-eager", first))
    found = read_constants(tmp_path / "calibration.json").runtime_gib
    grows = 0.6 / (65536 - 2048) * (8192 - 2048)
    assert found == pytest.approx(3.38 + 0.22 - grows, abs=0.001)


TINY = (
    "Actual usage is 0.0 GiB for weight, 0.04 GiB for peak activation, 0.06 GiB for non-torch "
    "memory, and 0.0 GiB for CUDAGraph memory.\nmax_num_batched_tokens=8192\n"
)


def test_a_tiny_models_memory_is_left_out(ask, tmp_path: Path) -> None:
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
def test_a_log_that_tells_nothing_of_use_is_no_calibration(ask, tmp_path: Path, text, said) -> None:
    path = put(tmp_path / "server.log", text)
    with pytest.raises(UsageError, match=said):
        ask("predict", "--calibrate", str(path))
    assert not (tmp_path / "calibration.json").exists()
