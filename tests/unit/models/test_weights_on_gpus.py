"""The size of loaded weights against "Model loading took" on H200s (`tests/gpu_runs.py`)."""

from __future__ import annotations

import pytest
from factories import log_of
from gpu_runs import GpuRun, runs

from spark_cluster.issues.explain import explain
from spark_cluster.models.lookup import find
from spark_cluster.models.weights import memory_bytes, must_be_known, weights_of

GIB = 1024**3
RUNS = {run.name: run for run in runs() if run.lines and run.geometry.name != "paris"}


def predicted(run: GpuRun) -> float:
    whole = memory_bytes(run.geometry, must_be_known(run.quantization))
    return (whole / run.tp + run.geometry.tables_bytes) / GIB


@pytest.mark.parametrize("name", RUNS)
def test_what_was_loaded_is_predicted_within_one_percent(name: str) -> None:
    """What is left is memory that PyTorch rounds up to 2 MiB a matrix, norms and biases."""
    run = RUNS[name]
    facts = explain([log_of(run.log, "engine.log")]).facts
    loaded = float(facts["weights"].removesuffix(" GiB"))
    assert 0 <= loaded / predicted(run) - 1 < 0.01


def test_the_tables_of_positions_of_gemma_4() -> None:
    """262,144 positions, 512 numbers for full layers and 256 for sliding ones, 2 bytes each."""
    assert find("google/gemma-4-31B-it").tables_bytes == 384 * 1024**2


@pytest.mark.parametrize(
    ("model", "mib"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 32),
        ("openai/gpt-oss-20b", 16),
        ("Qwen/Qwen3.6-35B-A3B", 32),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 0),
    ],
)
def test_the_tables_of_other_models_are_small(model: str, mib: int) -> None:
    assert find(model).tables_bytes == mib * 1024**2


def test_keys_that_are_the_values_too_are_loaded_twice() -> None:
    """Gemma 4 31B: 10 full layers, 4 heads of 512, hidden size 5376."""
    model = find("google/gemma-4-31B-it")
    copied = 10 * 4 * 512 * 5376
    for quantization, size in (("bf16", 2), ("fp8", 1)):
        part = weights_of(model, must_be_known(quantization)).part("attention")
        assert part.bytes == (part.parameters + copied) * size
