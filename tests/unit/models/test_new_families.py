"""Configs of 2026: sparse and compressed attention, delta attention, layers that a search chose.

Parameters are checked against what the authors of a model publish, within 3 percent.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import find
from spark_cluster.models.naming import base_of, nearest_model, of_build, table
from spark_cluster.models.shape import Attention, Geometry, Latent
from spark_cluster.models.weights import formats, memory_bytes, parameters

SOURCES = Path(__file__).parents[3] / "benchmarks/shapes/sources.json"

BLOCK: dict[str, Any] = {
    "attention": {"n_heads_in_group": 8, "no_op": False},
    "ffn": {"ffn_mult": 2.625, "no_op": False},
}
NAS: dict[str, Any] = {
    "model_type": "nemotron-nas",
    "hidden_size": 8192,
    "intermediate_size": None,
    "num_attention_heads": 64,
    "num_hidden_layers": 3,
    "num_key_value_heads": None,
    "vocab_size": 128256,
}


def billions(geometry: Geometry) -> float:
    return sum(parameters(geometry).values()) / 1e9


def latent(name: str) -> Latent:
    found = find(name).latent
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", 284),
        ("zai-org/GLM-5.2", 744),
        ("zai-org/GLM-5.3-Flash", 321),
        ("Qwen/Qwen3.8-27B", 27.3),
        ("Qwen/Qwen3.8-Flash-Next", 125),
        ("MiniMaxAI/MiniMax-M2.7", 229),
        ("MiniMaxAI/MiniMax-M3", 428),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120.7),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 550),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49.9),
        ("XiaomiMiMo/MiMo-V2-Flash", 309),
        ("XiaomiMiMo/MiMo-V2.5", 310),
        ("poolside/Laguna-S-2.1", 118),
        ("tencent/Hy3", 295),
        ("openai/gpt-oss-120b", 117),
    ],
)
def test_parameters_are_those_that_the_authors_publish(name: str, published: float) -> None:
    assert billions(find(name)) == pytest.approx(published, rel=0.03)


def test_sparse_attention_has_an_indexer_in_some_layers_only() -> None:
    assert (latent("deepseek-ai/DeepSeek-V3.2").index_layers, latent("zai-org/GLM-5").layers) == (
        None,
        78,
    )
    found = latent("zai-org/GLM-5.2")
    assert (found.index_dim, found.index_heads) == (128, 32)
    assert found.index_layers is not None
    assert 0 < found.index_layers < found.layers


def test_deepseek_v4_keeps_one_vector_for_several_tokens() -> None:
    found = latent("deepseek-ai/DeepSeek-V4-Flash")
    assert (found.rank, found.rope_dim, found.output_rank, found.output_groups) == (
        448,
        64,
        1024,
        8,
    )
    assert found.index_layers == 21
    assert found.kept == pytest.approx((2 + 21 / 4 + 20 / 128) / 43)


def test_experts_of_deepseek_v4_have_four_bits_and_the_rest_eight() -> None:
    """155 GB on the hub, of 284 billion parameters."""
    found = find("deepseek-ai/DeepSeek-V4-Flash-0731")
    assert found.quantization == "mxfp4"
    parts = formats(found, "mxfp4")
    assert (parts["experts"], parts["attention"], parts["shared"]) == ("mxfp4", "fp8", "fp8")
    assert memory_bytes(found, "mxfp4") == pytest.approx(155e9, rel=0.03)
    assert find("nvidia/DeepSeek-V4-Flash-NVFP4").quantization == "nvfp4"


def test_tables_of_n_grams_are_told_apart_from_the_weights() -> None:
    assert find("deepseek-ai/DeepSeek-V4.1-Flash").table_parameters == 768_022_850 * 256
    assert find("Qwen/Qwen3.8-Flash-Next").table_parameters == 51_200_000_000
    assert find("Qwen/Qwen3.8-27B").table_parameters == 0


def test_delta_attention_beside_latent_attention() -> None:
    found = find("zai-org/GLM-5.3-Flash")
    (state,) = found.recurrent
    assert (state.kind, state.layers, latent(found.name).layers) == ("kda", 34, 11)
    assert (state.state_elements, state.state_dtype) == (64 * 128 * 128, "float32")
    assert latent(found.name).rope_dim == 0


def test_kimi_lists_the_layers_with_full_attention_from_one() -> None:
    delta = {"full_attn_layers": [2, 4], "num_heads": 4, "head_dim": 8}
    shape = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 64}
    found = from_config({**shape, "num_hidden_layers": 4, "linear_attn_config": delta}, "it")
    assert (found.attention[0].layers, found.recurrent[0].layers) == (2, 2)


def test_blocks_that_a_search_chose_one_by_one() -> None:
    silent = {"attention": {"no_op": True}, "ffn": {"ffn_mult": 5.25, "no_op": False}}
    linear = {"attention": {"n_heads_in_group": 16}, "ffn": {"no_op": True}}
    found = from_config({**NAS, "block_configs": [BLOCK, silent, linear]}, "it")
    assert found.attention == (
        Attention("full", 1, 64, 8, 128, 128),
        Attention("full", 1, 64, 4, 128, 128),
    )
    assert (found.dense_layers, found.intermediate) == (2, (14336 + 28672) // 2)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({}, "should give each layer 'attention' and 'ffn'"),
        ({**BLOCK, "ffn": {"no_op": False}}, "a layer without 'ffn_mult'"),
        ({**BLOCK, "ffn": {"ffn_mult": -1}}, "a layer without 'ffn_mult'"),
        ({**BLOCK, "attention": {"n_heads_in_group": "8"}}, "should be a whole number"),
    ],
)
def test_blocks_that_are_not_understood(block: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidFile, match=re.escape(said)):
        from_config({**NAS, "block_configs": [block]}, "it")


def test_a_list_of_blocks_says_how_many_layers_there_are() -> None:
    found = find("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4")
    assert found.layers == 108
    assert found.experts is not None
    assert (found.experts.count, found.experts.latent) == (512, 2048)


def test_kinds_of_layers_with_query_heads_of_their_own() -> None:
    full, sliding = find("poolside/Laguna-S-2.1").attention
    assert (full.layers, full.q_heads, sliding.layers, sliding.q_heads) == (12, 48, 36, 72)
    full, sliding = find("XiaomiMiMo/MiMo-V2.5").attention
    assert (full.layers, full.kv_heads, sliding.layers, sliding.kv_heads) == (9, 4, 39, 8)


@pytest.mark.parametrize("said", [{"moe_layers_enum": "0,1,2,3,4"}, {"moe_layers": [0] * 5}])
def test_more_layers_with_experts_than_layers_are_refused(said: dict[str, Any]) -> None:
    config = {
        "model_type": "step3p5",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "moe_num_experts": 8,
        "moe_top_k": 2,
        **said,
    }
    with pytest.raises(InvalidFile, match="5 layers with experts, but 4 layers in all"):
        from_config(config, "x")


# --- the table -------------------------------------------------------------------------------


def test_step_says_its_heads_and_its_layers_with_experts_in_words_of_its_own() -> None:
    config = {
        "model_type": "step3p5",
        "hidden_size": 4096,
        "intermediate_size": 11264,
        "num_hidden_layers": 45,
        "num_nextn_predict_layers": 3,
        "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12,
        "sliding_window": 512,
        "num_attention_heads": 64,
        "num_attention_groups": 8,
        "head_dim": 128,
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8},
        "moe_layers_enum": ",".join(str(i) for i in range(3, 45)),
        "moe_num_experts": 288,
        "moe_top_k": 8,
        "moe_intermediate_size": 1280,
        "share_expert_dim": 1280,
        "max_position_embeddings": 262144,
        "vocab_size": 128896,
        "torch_dtype": "bfloat16",
    }
    assert from_config(config, "").attention == find("stepfun-ai/Step-3.5-Flash").attention
    assert billions(from_config(config, "")) == pytest.approx(196.9, abs=0.1)


def test_every_generated_entry_has_its_source_and_is_named_once() -> None:
    rows = {row["name"]: row for row in json.loads(SOURCES.read_text())["models"]}
    entries = [entry for entry in table("shapes")["models"] if "date" in entry]
    assert {entry["name"] for entry in entries} == rows.keys()
    for entry in entries:
        row = rows[entry["name"]]
        assert entry["source"].startswith(row.get("repository") or row["source"])
        assert entry["date"] == row["date"]
        assert set(row) & {"config", "path"}, "a config, or where it lies"


def test_the_size_in_a_name_is_that_of_the_shape() -> None:
    """Names round: 397B for 396.8; E4B counts without tables, Qwen2.5-VL-7B without its eyes."""
    for entry in table("shapes")["models"]:
        said = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)B(?![a-z]|-\d+E)", entry["name"])
        if said and "native" in entry:
            found = find(entry["name"])
            about = pytest.approx(float(said[1]), rel=0.12, abs=0.6)
            sizes = (billions(found), billions(found) - found.other_parameters / 1e9)
            assert about in sizes, entry["name"]


@pytest.mark.parametrize(
    ("build", "base", "quantization"),
    [
        ("Qwen/Qwen3.6-27B-FP8", "Qwen/Qwen3.6-27B", "fp8"),
        ("Intel/Qwen3.5-397B-A17B-int4-AutoRound", "Qwen/Qwen3.5-397B-A17B", "gptq-int4"),
        ("cyankiwi/MiniMax-M2.7-AWQ-4bit", "MiniMaxAI/MiniMax-M2.7", "awq-int4"),
        ("unsloth/Qwen3.8-27B-NVFP4", "Qwen/Qwen3.8-27B", "nvfp4"),
        ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "Qwen/Qwen3-235B-A22B", "gptq-int4"),
        ("huihui-ai/Huihui-Qwen3.6-27B-abliterated", "Qwen/Qwen3.6-27B", None),
        ("org/Qwen3.5-122B-A10B-int4-fp8-hybrid", "Qwen/Qwen3.5-122B-A10B", "not said"),
    ],
)
def test_builds_are_found_by_name_alone(build: str, base: str, quantization: str | None) -> None:
    assert (base_of(build), of_build(build)) == (base, quantization)
    assert find(build).layers == find(base).layers


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai/DeepSeek-V4-Flsh", "deepseek-ai/DeepSeek-V4-Flash"),
        ("Qwen/Qwen3.6-27B-Foo", "Qwen/Qwen3.6-27B"),
        ("MiniMaxAI/MiniMax-H3", None),
        ("Qwen/Qwen3.6-36B-A3B", None),
        ("org/llama", None),
    ],
)
def test_what_is_suggested_has_the_same_family_and_size(name: str, expected: str | None) -> None:
    known = [entry["name"] for entry in table("shapes")["models"]]
    known += [alias for entry in table("shapes")["models"] for alias in entry["aliases"]]
    assert nearest_model(name, known) == expected


def test_a_model_that_is_not_known_says_who_would_know() -> None:
    with pytest.raises(UsageError, match=r"without --offline \(and HF_HUB_OFFLINE\) the hub"):
        find("somebody/Model-9X")
    with pytest.raises(UsageError, match="give its whole name on the hub, ORG/NAME"):
        find("model")
