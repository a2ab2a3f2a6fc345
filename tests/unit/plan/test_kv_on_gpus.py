"""The KV cache arithmetic against what CUDA vLLM printed on H200s (`tests/gpu_runs.py`)."""

from __future__ import annotations

import kv_figures
import pytest
from gpu_runs import GpuRun, runs

from spark_cluster.models.config import from_config
from spark_cluster.plan import kv

GIB = 1024**3
ROUNDING = 0.005
RUNS = {run.name: run for run in runs()}


def predicted(run: GpuRun, kv_gib: float, **options: str) -> kv.KvCache:
    return kv_figures.cache(
        run.geometry, kv_gib=kv_gib, max_model_len=run.max_model_len, **run.options, **options
    )


def test_there_are_24_runs_of_two_versions() -> None:
    assert len(RUNS) == 24
    assert {run.vllm for run in RUNS.values()} == {"0.26.0", "0.33.0"}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_printed_what_is_predicted(name: str) -> None:
    """Exactly where the bytes are known; else within what the rounded GiB leaves open."""
    run = RUNS[name]
    if run.kv_exact:
        found = predicted(run, run.kv_gib)
        assert (found.tokens, round(found.max_concurrency, 2)) == (run.tokens, run.concurrency)
        return
    low, high = (predicted(run, run.kv_gib + sign * ROUNDING) for sign in (-1, 1))
    assert low.tokens <= run.tokens <= high.tokens
    assert round(low.max_concurrency, 2) <= run.concurrency <= round(high.max_concurrency, 2)


def test_prefix_caching_of_hybrids_is_on_from_0_28() -> None:
    """0.26.0, 0.27.0 and 0.27.1 keep it opt-in (`arg_utils.py`, default_prefix_caching)."""
    run = RUNS["0.26.0 q36-bf16-eager"]
    by_version = {
        version: predicted(GpuRun(**{**vars(run), "options": {**run.options, "vllm": version}}), 50)
        for version in ("0.25.0", "0.26.0", "0.27.1", "0.28.0")
    }
    states = {version: found.blocks_per_request for version, found in by_version.items()}
    assert states["0.25.0"] == states["0.26.0"] == states["0.27.1"] == states["0.28.0"] - 3


def test_gdn_prefill_by_flashinfer_keeps_a_checkpoint_from_0_33() -> None:
    """The same start with Triton's prefill logged blocks of 1056 tokens, with FlashInfer's 1088."""
    run = RUNS["0.33.0 q36-bf16-eager-gdndefault"]
    default, triton = predicted(run, 20), predicted(run, 20, gdn_prefill="triton")
    assert (default.block_size, triton.block_size) == (1088, 1056)
    assert (default.blocks_per_request, triton.blocks_per_request) == (70, 69)
    assert "FlashInfer" in default.rule
    assert "FlashInfer" not in triton.rule
    before = GpuRun(**{**vars(run), "options": {**run.options, "vllm": "0.32.0"}})
    assert predicted(before, 20).blocks_per_request == 69


def test_a_cpu_has_no_flashinfer() -> None:
    run = RUNS["0.33.0 q36-bf16-eager-gdndefault"]
    assert "FlashInfer" not in predicted(run, 20, device="cpu").rule


@pytest.mark.parametrize(
    ("model_type", "key", "expected"),
    [
        ("qwen3_next", "mamba_ssm_dtype", None),
        ("qwen3_5_moe_text", "mamba_ssm_dtype", "float32"),
        ("qwen3_5_text", "mamba_ssm_cache_dtype", None),
    ],
)
def test_a_state_key_counts_only_where_the_class_reads_it(
    model_type: str, key: str, expected: str | None
) -> None:
    config = {
        "model_type": model_type,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "vocab_size": 1,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        key: "float32",
    }
    assert from_config(config, "it").recurrent[0].state_dtype == expected
