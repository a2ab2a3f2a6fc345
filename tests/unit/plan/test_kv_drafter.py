"""The KV cache of drafters: their layers draw from the model's pool."""

from __future__ import annotations

from dataclasses import replace

import kv_figures
import pytest
from cases import each_row

from spark_cluster.models.lookup import find
from spark_cluster.plan.kv import DrafterLayers, drafter_layers, is_mtp

QWEN = replace(find("nvidia/Qwen3.6-35B-A3B-NVFP4"), mtp_layers=1)
LLAMA = find("meta-llama/Llama-3.1-8B-Instruct")
DEEPSEEK = find("deepseek-ai/DeepSeek-V2-Lite")
GEMMA = find("google/gemma-4-31B-it")
MTP = {"method": "mtp", "num_speculative_tokens": 2}


def cache(geometry, **options):
    return kv_figures.cache(geometry, kv_gib=22, max_model_len=262_144, vllm="0.26.0", **options)


def test_an_mtp_layer_takes_its_share_of_the_pool():
    """vLLM logged 2,054,681 tokens for Qwen3.6 with MTP where 2,291,500 were predicted without its
    layer: 11 layers a block instead of 10, and the weights of that layer.
    """
    drafter = drafter_layers(QWEN, MTP, QWEN.name)
    (layers,) = drafter.attention
    assert (layers.kind, layers.layers) == ("full", 1)
    without = cache(QWEN, kv_dtype="fp8", drafted_tokens=2)
    counted = cache(QWEN, kv_dtype="fp8", drafted_tokens=2, drafter=drafter)
    assert counted.tokens / without.tokens == pytest.approx(10 / 11, rel=1e-3)
    assert 2_291_500 * counted.tokens / without.tokens == pytest.approx(2_054_681, rel=0.015)


@pytest.mark.parametrize("tp", [1, 2])
def test_of_a_dense_model(tp):
    drafter = drafter_layers(replace(LLAMA, mtp_layers=2), MTP, LLAMA.name)
    without = cache(LLAMA, tp=tp)
    counted = cache(LLAMA, tp=tp, drafter=drafter)
    assert counted.blocks == pytest.approx(without.blocks * 32 / 34, abs=1)
    assert counted.blocks_per_request == without.blocks_per_request


def test_of_latent_attention():
    drafter = drafter_layers(DEEPSEEK, MTP, DEEPSEEK.name)
    assert drafter.latent == 1
    expected = cache(DEEPSEEK).blocks * 27 / 28
    assert cache(DEEPSEEK, drafter=drafter).blocks == pytest.approx(expected, abs=1)


def test_a_drafter_of_its_own():
    small = replace(LLAMA, attention=(replace(LLAMA.attention[0], layers=4),))
    speculative = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}
    unknown = drafter_layers(LLAMA, speculative, LLAMA.name)
    assert unknown == DrafterLayers(known=False)
    drafter = drafter_layers(replace(LLAMA, drafter=small), speculative, LLAMA.name)
    assert drafter == DrafterLayers(small.attention)
    assert cache(LLAMA, drafter=drafter).blocks == pytest.approx(
        cache(LLAMA).blocks * 32 / 36, abs=1
    )


def test_a_drafter_with_other_heads_than_the_model():
    narrow = replace(LLAMA.attention[0], layers=2, kv_heads=2)
    counted = cache(LLAMA, drafter=DrafterLayers((narrow,)))
    assert cache(LLAMA).blocks * 32 / 34 <= counted.blocks < cache(LLAMA).blocks


@each_row(__file__, "kv_drafter.json", "drafters_without_a_cache_of_their_own")
def test_drafters_without_a_cache_of_their_own(speculative):
    assistant = find("google/gemma-4-31B-it-assistant")
    for shape in (GEMMA, replace(GEMMA, drafter=assistant)):
        assert drafter_layers(shape, speculative, GEMMA.name) == DrafterLayers()


@each_row(__file__, "kv_drafter.json", "which_draft_with_layers_of_the_model")
def test_which_draft_with_layers_of_the_model(speculative, expected):
    assert is_mtp(speculative, "org/model") is expected
