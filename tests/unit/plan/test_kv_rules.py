"""The KV cache arithmetic: published figures exactly, what changed with which version, limits."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import kv_figures
import pytest
from cases import each_case, each_row
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.launch import Launch
from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import find
from spark_cluster.models.shape import Attention, Geometry
from spark_cluster.plan import kv
from spark_cluster.plan.kv_layout import KvLayout
from spark_cluster.plan.kv_rules import NEWEST_READ, RULES, for_version, vllm_version
from spark_cluster.plan.room import assumed, sequences, with_default_batch
from spark_cluster.plan.runtime import runtime
from spark_cluster.plan.serving import of_launch

GIB = 1024**3
GEMMA_31B = find("google/gemma-4-31B-it")
GEMMA_26B = find("google/gemma-4-26B-A4B-it")
LLAMA = find("meta-llama/Llama-3.1-8B-Instruct")


def shape(*attention: Attention) -> Geometry:
    return replace(LLAMA, layers=sum(part.layers for part in attention), attention=attention)


# --- what others have published --------------------------------------------------------------


@each_case(__file__, "kv_published.json")
def test_what_is_published_of_a_cache(case: dict[str, Any]) -> None:
    """Logs of real engines, and bytes of a request that others (a planner for vLLM on data-centre
    GPUs) traced for two batches in flight.

    The log of 0.32 on a CPU is of Gemma 4 31B in BF16: the engine has 1,638 blocks of 32 tokens and
    needs 997 a request, which is 3,276 and 1,994 of the 16 asked for.
    """
    found = kv_figures.cache(find(case["model"]), **case["options"])
    figures = {**vars(found), "bytes_per_request": found.gib_per_request * GIB}
    assert {name: round(figures[name], 2) for name in case["found"]} == case["found"]


# --- versions --------------------------------------------------------------------------------


def test_every_rule_says_what_changed() -> None:
    found = RULES
    assert [rule.since for rule in found] == sorted(
        (rule.since for rule in found), key=lambda text: [int(part) for part in text.split(".")]
    )
    for before, after in itertools.pairwise(found):
        assert after.why
        assert after.source
        changed = {key for key in vars(before) if getattr(before, key) != getattr(after, key)}
        assert changed - {"since", "why", "source"}, after.since


@each_row(__file__, "kv_rules.json", "the_rule_of_a_version")
def test_the_rule_of_a_version(version: str, since: str) -> None:
    rule, words = for_version(version)
    assert rule.since == since
    assert "may differ" not in words


@pytest.mark.parametrize("version", ["0.34.0", "1.2", "0.18.0"])
def test_a_version_that_no_one_has_read_says_so(version: str) -> None:
    _, words = for_version(version)
    assert f"{version} may differ" in words


def figures(geometry: Geometry, vllm: str, **options: Any) -> kv.KvCache:
    given: dict[str, Any] = {"kv_gib": 20, "max_model_len": 32768, **options}
    return kv_figures.cache(geometry, vllm=vllm, **given)


def test_0_20_1_prints_tokens_that_a_request_can_use() -> None:
    before, after = figures(GEMMA_31B, "0.20.0"), figures(GEMMA_31B, "0.20.1")
    assert before.max_concurrency == after.max_concurrency
    assert before.tokens == before.blocks // 6 * 16
    assert after.tokens == int(after.max_concurrency * 32768)
    assert after.tokens > 2 * before.tokens


def test_0_26_counts_two_batches_in_flight_on_gpus() -> None:
    before, after = figures(GEMMA_31B, "0.25.1"), figures(GEMMA_31B, "0.26.0")
    assert before.blocks_per_request == 1024 + 5 * (math.ceil((1023 + 2048) / 16) + 1)
    assert after.blocks_per_request == 1024 + 5 * (math.ceil((1023 + 4096) / 16) + 1)
    one = figures(GEMMA_31B, "0.26.0", async_scheduling=False)
    assert one.blocks_per_request == before.blocks_per_request
    assert figures(GEMMA_31B, "0.26.0", device="cpu").blocks_per_request == one.blocks_per_request


def test_0_32_keeps_a_checkpoint_of_mamba_2() -> None:
    model = find("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    before, after = figures(model, "0.31.0"), figures(model, "0.32.0")
    assert after.blocks_per_request == before.blocks_per_request + 4  # four groups of states


def test_pages_that_do_not_divide_are_refused_before_0_24() -> None:
    odd = shape(
        Attention("full", 4, 8, 8, 96, 96), Attention("sliding", 4, 8, 8, 128, 128, window=512)
    )
    with pytest.raises(UsageError, match="does not divide"):
        figures(odd, "0.23.0")
    assert figures(odd, "0.24.0").blocks == 20 * GIB // (16 * 8 * 256 * 2 * 4)


def test_cache_mode_all_keeps_a_state_for_every_block() -> None:
    model = find("ibm-granite/granite-4.0-h-small")
    aligned = figures(model, "0.25.0", mamba_cache_mode="align")
    every = figures(model, "0.25.0", mamba_cache_mode="all")
    assert every.block_size % 256 == 0  # the chunk of Mamba 2
    assert every.blocks_per_request == 10 * math.ceil(32768 / every.block_size)
    assert aligned.blocks_per_request < every.blocks_per_request
    with pytest.raises(UsageError, match="mamba-cache-mode"):
        figures(model, "0.32.0", mamba_cache_mode="all")


# --- tensor parallelism and types ------------------------------------------------------------


def test_fewer_heads_than_gpus_are_replicated() -> None:
    single = shape(Attention("full", 8, 8, 1, 128, 128))
    assert figures(single, "0.32.0", tp=2) == figures(single, "0.32.0", tp=1)
    # two full heads and eight sliding ones on four GPUs
    assert figures(GEMMA_26B, "0.32.0", tp=4).blocks == 20 * GIB // (5 * 16 * 1 * 1024 * 2)


def test_groups_of_mamba_2_follow_their_heads() -> None:
    model = find("ibm-granite/granite-4.0-h-small")  # one group of B and C
    conv = (8192 + 2 * 2 * 128) * 3 // 2 * 2
    state = 128 * 64 * 128 // 2 * 2
    block = 16 * math.ceil((conv + state) / (16 * 4 * 256 * 2))
    assert figures(model, "0.32.0", tp=2).block_size == block


@pytest.mark.parametrize(
    ("geometry", "tp", "said"),
    [
        (LLAMA, 3, "32 attention heads cannot be divided among 3 GPUs"),
        (shape(Attention("full", 1, 12, 4, 64, 64)), 6, "4 key-value heads cannot be shared by 6"),
        (LLAMA, 0, "at least 1"),
    ],
)
def test_what_cannot_be_divided(geometry: Geometry, tp: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        figures(geometry, "0.32.0", tp=tp)


@pytest.mark.parametrize(
    ("dtype", "ratio"),
    [("auto", 1), ("bfloat16", 1), ("bf16", 1), ("fp8", 2), ("fp8_e4m3", 2), ("FP8", 2)],
)
def test_types_of_the_cache(dtype: str, ratio: int) -> None:
    plain = figures(LLAMA, "0.32.0").blocks
    assert figures(LLAMA, "0.32.0", kv_dtype=dtype).blocks == ratio * plain


def test_nvfp4_packs_two_and_a_scale_for_sixteen() -> None:
    found = figures(LLAMA, "0.32.0", kv_dtype="nvfp4")
    assert found.blocks == 20 * GIB // (32 * 16 * 8 * 2 * (64 + 8))


def test_auto_is_what_the_checkpoint_asks_for() -> None:
    quantized = find("nvidia/Gemma-4-31B-IT-NVFP4")
    asked = figures(quantized, "0.32.0", kv_dtype="auto")
    assert asked.blocks == figures(GEMMA_31B, "0.32.0", kv_dtype="fp8").blocks


def test_a_type_that_is_none() -> None:
    with pytest.raises(UsageError, match="did you mean 'fp8_e4m3'"):
        figures(LLAMA, "0.32.0", kv_dtype="fp8_e4m4")


# --- limits ----------------------------------------------------------------------------------


@each_row(__file__, "kv_rules.json", "values_out_of_range")
def test_values_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        figures(LLAMA, "0.32.0", **options)


def test_a_model_that_only_borrows_has_no_cache() -> None:
    with pytest.raises(UsageError, match="no KV cache of its own"):
        figures(find("google/gemma-4-31B-it-assistant"), "0.32.0")


NAMES = ("openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3.6-35B-A3B")
NAMES += ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",)
MODEL = st.sampled_from([GEMMA_31B, GEMMA_26B, LLAMA, *map(find, NAMES)])
VERSIONS = ["0.19.0", "0.20.0", "0.22.0", "0.25.0", "0.26.0", "0.29.0", "0.30.0", "0.32.0"]
OPTIONS = st.fixed_dictionaries({
    "vllm": st.sampled_from(VERSIONS),
    "kv_dtype": st.sampled_from(["auto", "fp8"]),
    "tp": st.sampled_from([1, 2]),
    "max_num_batched_tokens": st.integers(1, 20_000),
})  # fmt: skip


@given(MODEL, OPTIONS, st.integers(1, 100 * GIB), st.integers(1, 262144))
def test_the_longest_request_fits_and_one_token_more_does_not(geometry, options, size, length):
    found = kv_figures.cache(geometry, kv_bytes=size, max_model_len=length, **options)
    longest = found.max_model_len
    if longest:
        assert kv_figures.bytes_for(geometry, 1, longest, **options) <= size
    if longest < geometry.max_positions:
        assert kv_figures.bytes_for(geometry, 1, longest + 1, **options) > size
    assert (longest >= length) == (
        kv_figures.bytes_for(geometry, 1, length, **options) <= size
    ) or (length > geometry.max_positions)


@given(MODEL, OPTIONS, st.integers(1, 64), st.integers(1, 262144))
def test_bytes_for_is_the_inverse_of_cache(geometry, options, requests, length):
    size = kv_figures.bytes_for(geometry, requests, length, **options)
    assert kv_figures.cache(
        geometry, kv_bytes=size, max_model_len=length, **options
    ).max_concurrency >= (requests)
    spare = 1 if for_version(options["vllm"])[0].null_block else 0
    less = kv_figures.cache(geometry, kv_bytes=size - 1, max_model_len=length, **options)
    assert less.blocks - spare < requests * less.blocks_per_request
    with pytest.raises(UsageError):
        kv_figures.bytes_for(geometry, 0, length, **options)


# --- one reading of the version of vLLM in a plan: without one, the newest that was read ---------


PLAIN_MODEL = "Qwen/Qwen3-8B"
NONE_GIVEN = (None, "", "latest", "Nightly", " nightly ", "0.1.dev20073+g8e685d198")


@pytest.mark.parametrize("text", NONE_GIVEN)
def test_without_a_version_every_part_of_a_plan_takes_the_newest(text: str | None) -> None:
    assert str(vllm_version(text)) == NEWEST_READ
    assert "newest" in for_version(text)[1]
    rooms, geometry = assumed(1), find(PLAIN_MODEL)
    none, newest = (Launch(PLAIN_MODEL, vllm=each) for each in (text, NEWEST_READ))
    assert sequences(none, rooms) == sequences(newest, rooms)
    batches = (with_default_batch(one, rooms).args for one in (none, newest))
    assert next(batches) == next(batches)
    parts = [runtime(one, of_launch(one, geometry), rooms, 1.0) for one in (none, newest)]
    assert parts[0] == parts[1]
    layouts = [KvLayout(geometry, vllm=one.vllm) for one in (none, newest)]
    assert layouts[0].rule == layouts[1].rule


@pytest.mark.parametrize(
    "text", ["newest", "0.x", "main@abc", pytest.param("9" * 5000, id="digits")]
)
def test_what_is_no_version_is_refused_everywhere(text: str) -> None:
    wrong, rooms, geometry = Launch(PLAIN_MODEL, vllm=text), assumed(1), find(PLAIN_MODEL)
    for ask in (
        lambda: vllm_version(text),
        lambda: for_version(text),
        lambda: sequences(wrong, rooms),
        lambda: runtime(wrong, of_launch(replace(wrong, vllm=None), geometry), rooms, 1.0),
    ):
        with pytest.raises(UsageError, match="is not a version of vLLM"):
            ask()
