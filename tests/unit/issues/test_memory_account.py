"""What is read of starts on H200s: vLLM's account of memory, in both wordings, and other facts."""

from __future__ import annotations

import pytest
from cases import each_row
from factories import log_of
from gpu_runs import GpuRun, runs

from spark_cluster.issues.explain import explain
from spark_cluster.issues.startup import MemoryAccount, account_in

RUNS = {run.name: run for run in runs() if run.lines}
UTILIZATION_GIB = 118.83
"""--gpu-memory-utilization 0.85 of 139.8 GiB."""


def test_both_wordings() -> None:
    older = account_in(RUNS["0.26.0 g31-bf16-eager"].lines)
    newer = account_in(RUNS["0.33.0 g31-bf16-eager"].lines)
    assert older == MemoryAccount(57.91, 0.58)
    assert newer == MemoryAccount(57.91, 0.43)


@pytest.mark.parametrize(
    "name", ["0.26.0 g26-bf16-eager", "0.26.0 llama70-fp8-eager", "0.33.0 g31-fp8-kvfp8-eager"]
)
def test_weights_runtime_and_cache_are_all_of_the_share(name: str) -> None:
    run = RUNS[name]
    account = account_in(run.lines)
    assert account is not None
    whole = account.weights_gib + account.runtime_gib + run.kv_gib
    assert whole == pytest.approx(UTILIZATION_GIB, abs=0.02)


def test_a_cache_in_bytes_is_not_measured() -> None:
    assert account_in(RUNS["0.26.0 g26-fp8-kvfp8-eager"].lines) is None
    assert account_in(["nothing", ""]) is None


def test_without_the_weights_the_newer_wording_tells_nothing() -> None:
    lines = [line for line in RUNS["0.33.0 g31-bf16-eager"].lines if "loading took" not in line]
    assert account_in(lines) is None


@each_row(__file__, "memory_account.toml", "the_batch_is_read")
def test_the_batch_is_read(line: str) -> None:
    account = account_in([line, *RUNS["0.26.0 g31-bf16-eager"].lines])
    assert account is not None
    assert account.batched_tokens == 8192


# --- what is read of a start from the lines that vLLM logged --------------------------------------


def facts(run: GpuRun) -> dict[str, str]:
    return dict(explain([log_of(run.log, "engine.log")]).facts)


@pytest.mark.parametrize("name", RUNS)
def test_a_start_is_read(name: str) -> None:
    run = RUNS[name]
    found = facts(run)
    assert found["attention"] == ("TRITON_ATTN" if "gemma" in run.geometry.name else "FLASH_ATTN")
    assert float(found["KV cache"].removesuffix(" GiB")) == run.kv_gib
    assert int(found["KV tokens"].replace(",", "")) == run.tokens
    assert found["concurrency"] == f"{run.concurrency:.2f} requests of {run.max_model_len:,} tokens"
    assert found["weights"].endswith(" GiB")


def test_the_prefill_of_gated_delta_nets_is_told() -> None:
    found = {name: facts(run).get("GDN prefill") for name, run in RUNS.items()}
    assert {name for name, kernel in found.items() if kernel == "FlashInfer"} == {
        "0.26.0 f-qwen-seqs",
        "0.26.0 q36-bf16-eager",
        "0.26.0 q36-kvfp8-nopc-eager",
        "0.33.0 q36-bf16-eager-gdndefault",
    }
    triton = "INFO 11-21 23:55:03 [a.py:300] Using Triton/FLA GDN prefill kernel (requested=triton)"
    assert explain([log_of(triton, "it")]).facts["GDN prefill"] == "Triton/FLA"


def test_attention_that_is_forced() -> None:
    """As vLLM's source has it; this line was not seen on a GPU."""
    line = "INFO 11-21 23:55:03 [a.py:1] FA4 not available, forcing TRITON_ATTN backend."
    assert explain([log_of(line, "it")]).facts["attention"] == "TRITON_ATTN, forced"
