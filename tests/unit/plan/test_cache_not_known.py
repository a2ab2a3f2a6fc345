"""Caches that are counted as servers logged them, that are not known, or shared out by context."""

from __future__ import annotations

import pytest

from spark_cluster.config.launch import Launch
from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import find
from spark_cluster.plan.fit import fit
from spark_cluster.plan.kv import GIB, KvLayout, cache
from spark_cluster.plan.room import assumed

V4 = "deepseek-ai/DeepSeek-V4-Flash"

LOGGED = [(10.58, 1_533_940), (18.08, 2_493_464), (19.85, 3_027_217), (12.16, 1_266_988)]
"""GiB and tokens that servers on two Sparks logged; kv_rules.toml says whose."""


@pytest.mark.parametrize(("gib", "tokens"), LOGGED)
def test_deepseek_v4_is_promised_no_more_tokens_than_any_server_had(
    gib: float, tokens: int
) -> None:
    found = cache(KvLayout(find(V4), tp=2), int(gib * GIB), 131_072)
    assert 0.6 * tokens < found.tokens <= tokens
    assert found.rule == "at most what servers logged for a token: 11,172 bytes"


def test_a_million_tokens_need_what_one_server_said() -> None:
    """10.91 GiB, with batches of 16,384 tokens."""
    found = cache(KvLayout(find(V4), tp=2), 20 * GIB, 1_048_576)
    assert found.gib_per_request == pytest.approx(10.91, abs=0.01)


def launched(model: str, tp: int = 2, **flags: int) -> Launch:
    args = {"max-model-len": 8192, **{name.replace("_", "-"): n for name, n in flags.items()}}
    return Launch(model=model, args=args, tp=tp, nodes=tp)


def test_weights_too_large_need_no_rule_for_the_cache() -> None:
    name = "deepseek-ai/DeepSeek-V4.1-Flash"
    found = fit(launched(name), find(name), assumed(2))
    assert not found.fits
    assert found.reasons[0].startswith("spark1: the weights take 139.2 GiB")


def test_where_room_is_left_what_is_known_is_said() -> None:
    name = "org/Qwen3.8-Flash-Next-NVFP4"
    with pytest.raises(UsageError) as raised:
        fit(launched(name), find(name), assumed(2))
    said = str(raised.value)
    assert "whether org/Qwen3.8-Flash-Next-NVFP4 fits is not known here: weights take 3" in said
    assert "without its tables of n-grams (51 billion entries)" in said
    assert "indexed attention with compressed index keys" in said


def test_a_cache_alone_is_not_known_either() -> None:
    with pytest.raises(
        UsageError, match=r"how vLLM lays out the KV cache of zai-org/GLM-5\.3-Flash"
    ):
        cache(KvLayout(find("zai-org/GLM-5.3-Flash")), GIB, 8192)


def test_context_parallelism_shares_out_the_tokens_of_a_request() -> None:
    """`FullAttentionSpec.max_memory_usage_bytes`: the length is divided, then comes in blocks."""
    name = "zai-org/GLM-5.2"
    whole, shared = (cache(KvLayout(find(name), tp=4, dcp=n), 8 * GIB, 65_536) for n in (1, 4))
    assert (whole.blocks_per_request, shared.blocks_per_request) == (4096, 1024)
    assert shared.tokens == pytest.approx(4 * whole.tokens, rel=0.001)
    flags = {"decode_context_parallel_size": 2}
    two = fit(launched("zai-org/GLM-4.7-Flash", **flags), find("zai-org/GLM-4.7-Flash"), assumed(2))
    one = fit(launched("zai-org/GLM-4.7-Flash"), find("zai-org/GLM-4.7-Flash"), assumed(2))
    assert two.cache.max_concurrency == pytest.approx(2 * one.cache.max_concurrency, rel=0.01)


def test_windows_are_not_shared_out() -> None:
    gemma = find("google/gemma-4-31B-it")
    one, two = (cache(KvLayout(gemma, tp=2, dcp=n), 8 * GIB, 32_768) for n in (1, 2))
    assert one.blocks_per_request > two.blocks_per_request > one.blocks_per_request / 2


def test_layers_without_an_indexer_keep_no_index_keys() -> None:
    every = cache(KvLayout(find("zai-org/GLM-5.1"), tp=4), 8 * GIB, 65_536)
    some = cache(KvLayout(find("zai-org/GLM-5.2"), tp=4), 8 * GIB, 65_536)
    assert some.tokens > every.tokens
