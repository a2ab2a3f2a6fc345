"""What is read of a start on a GPU, from the lines that vLLM logged on H200s."""

from __future__ import annotations

import pytest
from factories import log_of
from gpu_runs import GpuRun, runs

from spark_cluster.issues.explain import explain

WITH_LINES = {run.name: run for run in runs() if run.lines}


def facts(run: GpuRun) -> dict[str, str]:
    return dict(explain([log_of(run.log, "engine.log")]).facts)


@pytest.mark.parametrize("name", WITH_LINES)
def test_a_start_is_read(name: str) -> None:
    run = WITH_LINES[name]
    found = facts(run)
    assert found["attention"] == ("TRITON_ATTN" if "gemma" in run.geometry.name else "FLASH_ATTN")
    assert float(found["KV cache"].removesuffix(" GiB")) == run.kv_gib
    assert int(found["KV tokens"].replace(",", "")) == run.tokens
    assert found["concurrency"] == f"{run.concurrency:.2f} requests of {run.max_model_len:,} tokens"
    assert found["weights"].endswith(" GiB")


def test_the_prefill_of_gated_delta_nets_is_told() -> None:
    found = {name: facts(run).get("GDN prefill") for name, run in WITH_LINES.items()}
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
