"""TurboQuant's KV cache: bytes by the sources of vLLM, and what is not known of it."""

from __future__ import annotations

import pytest
from cases import each_row

from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import find
from spark_cluster.plan.kv import pool
from spark_cluster.plan.kv_layout import KvLayout, element
from spark_cluster.plan.kv_pages import pages

QWEN, HYBRID = find("Qwen/Qwen3-8B"), find("Qwen/Qwen3-Next-80B-A3B-Instruct")
SLOTS = {
    "turboquant_k8v4": 128 + 64 + 4,
    "turboquant_4bit_nc": 64 + 2 + 64 + 4,
    "turboquant_k3v4_nc": 48 + 2 + 64 + 4,
    "turboquant_3bit_nc": 48 + 2 + 48 + 4,
}
"""Bytes of a token and head of 128 elements: packed keys, their norm, packed values, scale and zero
(`slot_size_aligned`)."""


@pytest.mark.parametrize(("kind", "slot"), SLOTS.items())
def test_the_ends_of_a_model_keep_its_own_type(kind: str, slot: int) -> None:
    assert element(kind, QWEN).slot(128, 128) == slot
    assert element(kind, QWEN).slot(100, 100) % 2 == 0
    for tp in (1, 2):
        packed, own = pages(KvLayout(QWEN, kind, vllm="0.24.0", tp=tp))
        assert (packed.layers, packed.page) == (32, 16 * 8 // tp * slot)
        assert (own.layers, own.page) == (4, 16 * 8 // tp * 2 * 128 * 2)
    token = 8 * (32 * slot + 4 * 512)
    assert pool(KvLayout(QWEN, kind, vllm="0.24.0")).block_bytes == 16 * token


def test_a_packed_page_covers_one_that_is_not() -> None:
    (packed, own) = pages(KvLayout(QWEN, "turboquant_k8v4", vllm="0.33.0"))
    assert packed.block == own.block == 48
    assert packed.page >= 16 * 8 * 512


def test_a_hybrid_packs_all_its_attention() -> None:
    full, state = pages(KvLayout(HYBRID, "turboquant_k8v4", vllm="0.33.0"))
    (part,) = HYBRID.attention
    assert full.layers == part.layers
    assert full.page // full.block == part.kv_heads * (256 + 128 + 4)
    assert full.page == state.page


@each_row(__file__, "kv_turboquant.toml", "what_is_not_known_is_no_number")
def test_what_is_not_known_is_no_number(model: str, version: str, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        pages(KvLayout(find(model), "turboquant_k8v4", vllm=version))
    assert why in f"{raised.value.message} {raised.value.hint}"
