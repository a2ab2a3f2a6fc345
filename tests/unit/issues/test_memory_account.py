"""vLLM's account of memory, in both wordings, as it was logged on H200s."""

from __future__ import annotations

import pytest
from cases import each_row
from gpu_runs import runs

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
