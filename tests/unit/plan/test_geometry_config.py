"""From a config.json to the shape of a model: every family, what is missing, what is odd."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.checkpoint import stored_tensors, weight_files
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import Folders, find, hub_cache, known_models
from spark_cluster.models.shape import Attention, Geometry
from spark_cluster.models.weights import checkpoint_quantization

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def read(**changed: Any) -> Geometry:
    """Llama's config with other keys; None takes one away."""
    config = {key: value for key, value in {**LLAMA, **changed}.items() if value is not None}
    return from_config(config, "it")


def kinds(geometry: Geometry) -> dict[str, int]:
    return {part.kind: part.layers for part in geometry.attention}


# --- families --------------------------------------------------------------------------------


def test_plain_grouped_query_attention() -> None:
    found = read()
    assert found.attention == (Attention("full", 32, 32, 8, 128, 128),)
    assert (found.dense_layers, found.intermediate, found.tied) == (32, 14336, False)
    assert found.known
    assert found.experts is found.latent is None


def test_heads_that_are_not_named_are_as_many_as_queries() -> None:
    assert read(num_key_value_heads=None).attention[0].kv_heads == 32


def test_gemma_4_has_other_heads_in_its_full_layers() -> None:
    found = find("google/gemma-4-31B-it")
    assert found.attention == (
        Attention("full", 10, 32, 4, 512, 512, k_is_v=True),
        Attention("sliding", 50, 32, 16, 256, 256, window=1024),
    )
    assert found.tied
    assert 500e6 < found.other_parameters < 600e6


def test_gemma_4_mixture_has_a_dense_network_next_to_its_experts() -> None:
    found = find("google/gemma-4-26B-A4B-it")
    assert found.experts is not None
    assert (found.experts.count, found.experts.top_k, found.experts.layers) == (128, 8, 30)
    assert (found.experts.intermediate, found.intermediate, found.dense_layers) == (704, 2112, 30)


def test_the_drafter_of_gemma_4_keeps_no_cache_of_its_own() -> None:
    found = find("google/gemma-4-31B-it-assistant")
    assert [(part.layers, part.borrowed) for part in found.attention] == [(1, 1), (3, 3)]


def test_layers_that_borrow_the_cache_are_the_last_ones() -> None:
    types = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    found = read(
        model_type="gemma4_text",
        num_hidden_layers=35,
        layer_types=types,
        sliding_window=512,
        num_kv_shared_layers=20,
    )
    borrowed = {part.kind: (part.layers, part.borrowed) for part in found.attention}
    assert borrowed == {"full": (7, 4), "sliding": (28, 16)}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, {"sliding": 32}),
        ({"model_type": "mistral", "sliding_window": None}, {"full": 32}),
        (
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
            {"full": 32},
        ),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 4096,
                "use_sliding_window": True,
                "max_window_layers": 28,
            },
            {"full": 28, "sliding": 4},
        ),
        ({"model_type": "gemma2"}, {"full": 16, "sliding": 16}),
        ({"model_type": "gemma3_text", "num_hidden_layers": 34}, {"full": 5, "sliding": 29}),
        ({"model_type": "gpt_oss"}, {"full": 16, "sliding": 16}),
        ({"model_type": "cohere2"}, {"full": 8, "sliding": 24}),
        (
            {"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"},
            {"full": 8, "sliding": 24},
        ),
        ({"model_type": "llama4_text", "hidden_size": 5120}, {"full": 8, "chunked": 24}),
        (
            {"model_type": "llama4_text", "no_rope_layers": [1, 0] * 16},
            {"full": 16, "chunked": 16},
        ),
    ],
)
def test_which_layers_see_all(changed: dict[str, Any], expected: dict[str, int]) -> None:
    assert kinds(read(**changed)) == expected


def test_gemma_3_on_the_hub_leaves_its_heads_out() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    text |= {"intermediate_size": 10240, "sliding_window": 1024}
    found = from_config({"model_type": "gemma3", "text_config": text}, "google/gemma-3-4b-it")
    full, sliding = found.attention
    assert (full.q_heads, full.kv_heads, full.head_dim) == (8, 4, 256)
    assert (full.layers, sliding.layers, sliding.window) == (5, 29, 1024)
    assert found.vocab == 262208


def test_gated_delta_net() -> None:
    found = find("Qwen/Qwen3.6-35B-A3B")
    assert kinds(found) == {"full": 10}
    (state,) = found.recurrent
    assert (state.kind, state.layers, state.state_dtype) == ("gdn", 30, "float32")
    assert state.conv_elements == (2 * 16 * 128 + 32 * 128) * 3
    assert state.state_elements == 32 * 128 * 128
    # q, k, v and z; a and b; the convolution; out
    assert state.weights == 2048 * (12288 + 64) + 8192 * 4 + 4096 * 2048


def test_mamba_2_by_a_pattern_of_letters() -> None:
    found = find("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    (state,) = found.recurrent
    assert (state.kind, state.layers) == ("mamba2", 23)
    assert state.conv_elements == (64 * 64 + 2 * 8 * 128) * 3
    assert kinds(found) == {"full": 6}
    assert found.experts is not None
    assert (found.experts.layers, found.experts.shared_intermediate) == (23, 3712)
    assert found.dense_layers == 0


def test_a_list_of_blocks_says_the_same_as_the_letters() -> None:
    words = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    keys = {"mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8}
    keys |= {"model_type": "nemotron_h", "num_hidden_layers": 8}
    pattern = "MEM-*EM*"
    mixture = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    letters = read(**keys, **mixture, hybrid_override_pattern=pattern)
    listed = read(**keys, **mixture, layers_block_type=[words[letter] for letter in pattern])
    assert letters == listed
    assert (letters.dense_layers, letters.experts.layers if letters.experts else 0) == (1, 2)


def test_mamba_1_and_its_attention_by_period() -> None:
    found = read(
        model_type="jamba",
        attn_layer_period=8,
        attn_layer_offset=4,
        mamba_d_state=16,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=16,
        num_experts_per_tok=2,
    )
    (state,) = found.recurrent
    assert (state.kind, state.layers, kinds(found)) == ("mamba", 28, {"full": 4})
    assert found.experts is not None
    assert (found.experts.layers, found.dense_layers) == (16, 16)


def test_attention_and_state_in_one_layer() -> None:
    found = read(model_type="falcon_h1", mamba_n_heads=24, mamba_d_head=128, mamba_d_state=256)
    assert kinds(found) == {"full": 32}
    assert found.recurrent[0].layers == 32


def test_latent_attention() -> None:
    found = find("deepseek-ai/DeepSeek-V2-Lite")
    assert found.attention == ()
    assert found.latent is not None
    assert (found.latent.rank, found.latent.rope_dim, found.latent.q_rank) == (512, 64, None)
    assert found.experts is not None
    assert (found.experts.layers, found.dense_layers) == (26, 1)
    assert found.experts.shared_intermediate == 2 * 1408


def test_a_mixture_without_a_size_for_its_experts_takes_the_dense_one() -> None:
    found = read(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert found.experts is not None
    assert (found.experts.intermediate, found.dense_layers, found.intermediate) == (14336, 0, 0)


# --- quantization ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (None, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4}}},
            },
            "awq-int4",
        ),
        ({"quant_method": "awq", "bits": 4}, "awq-int4"),
        ({"quant_method": "gptq", "bits": 4}, "gptq-int4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
    ],
)
def test_quantization(section: dict[str, Any] | None, expected: str | None) -> None:
    assert read(quantization_config=section).quantization == expected


def _groups(*weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {f"group_{number}": {"weights": each} for number, each in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **more}


FP4, FP8 = {"type": "float", "num_bits": 4}, {"type": "float", "num_bits": 8}
INT4, INT8 = {"type": "int", "num_bits": 4}, {"type": "int", "num_bits": 8}


def _modelopt(*algorithms: object) -> dict[str, Any]:
    layers = {f"layers.{n}.mlp": {"quant_algo": each} for n, each in enumerate(algorithms)}
    named = {"quantized_layers": layers} if algorithms else {}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", **named}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (_modelopt(), "mixed-precision"),
        (_modelopt("FP8", "NVFP4"), "mixed-precision"),
        (_modelopt("NVFP4", "NVFP4"), "nvfp4"),
        (_modelopt("NVFP4", {"a": 1}), "mixed-precision"),
        ({**_modelopt(), "quantized_layers": ["x"]}, "mixed-precision"),
        (_modelopt("MIXED_PRECISION"), "mixed-precision"),
        (_groups(FP4, FP8), "mixed-precision"),
        (_groups(FP8, FP4, format="nvfp4-pack-quantized"), "mixed-precision"),
        (_groups(INT4, INT8, format="pack-quantized"), "mixed-precision"),
        (_groups(FP4, FP4, format="nvfp4-pack-quantized"), "nvfp4"),
        (_groups(FP8, format="mixed-precision"), "fp8"),
        ("fp8", "not readable"),
        ([{"quant_method": "fp8"}], "not readable"),
        (4, "not readable"),
        ({}, None),
    ],
)
def test_layers_of_several_formats_are_not_taken_for_one(section: Any, expected: str) -> None:
    assert read(quantization_config=section).quantization == expected


@pytest.mark.parametrize("section", [_modelopt("FP8", "NVFP4"), _groups(FP4, FP8), "fp8", ["fp8"]])
def test_without_tensors_such_a_build_has_no_size(section: Any) -> None:
    with pytest.raises(UsageError, match="their size and speed are not known") as error:
        checkpoint_quantization(read(quantization_config=section))
    assert "tensors" in error.value.hint


def test_a_checkpoint_may_ask_for_its_cache() -> None:
    scheme = {"quant_method": "modelopt", "kv_cache_scheme": {"type": "float", "num_bits": 8}}
    assert read(quantization_config=scheme).kv_dtype == "fp8"
    assert read().kv_dtype is None
    assert find("nvidia/Gemma-4-31B-IT-NVFP4").kv_dtype == "fp8"


# --- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size"],
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(InvalidFile, match=key) as error:
        read(**{key: None})
    assert "it" in error.value.where


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_hidden_layers": "32"}, "'num_hidden_layers' should be a whole number, found '32'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' should be above 0"),
        ({"num_key_value_heads": -8}, "'num_key_value_heads' should not be negative"),
        ({"num_key_value_heads": 5}, "does not divide"),
        ({"layer_types": ["full_attention"]}, "'layer_types' has 1 entries"),
        ({"layer_types": ["retention"] * 32}, "not known: retention"),
        ({"layer_types": ["linear_attention"] * 32}, "none of the keys that give its size"),
        ({"kv_lora_rank": 512}, "'qk_rope_head_dim'"),
        ({"num_experts": 8}, "'num_experts_per_tok'"),
        ({"linear_num_value_heads": 32}, "'linear_num_key_heads'"),
        ({"num_attention_heads": True}, "should be a whole number"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidFile) as error:
        read(**changed)
    assert said in str(error.value)


def test_an_unknown_family_is_read_by_its_keys() -> None:
    found = read(model_type="brand_new")
    assert not found.known
    assert found.attention == read().attention


WORDS = ["layer_types", "sliding_window", "kv_lora_rank", "num_experts", "text_config", *LLAMA]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(WORDS), JUNK))
def test_odd_configs_give_a_geometry_or_an_error_for_the_user(changed: dict[str, Any]) -> None:
    try:
        found = from_config({**copy.deepcopy(LLAMA), **changed}, "odd")
    except InvalidFile as error:
        assert error.where == "config of odd"
    else:
        assert found.layers > 0


# --- where it comes from ---------------------------------------------------------------------


def test_every_model_of_the_table_is_read() -> None:
    assert len(known_models()) == len(set(known_models())) > 120
    for name in known_models():
        found = find(name)
        assert not found.not_understood, name
        assert found.name == name
        assert found.max_positions >= 8192


def test_parameters_of_the_two_gemmas_agree_with_what_was_counted() -> None:
    """30.696e9 and 25.232e9 parameters of text (public configs, counted in DGX Spark part 7)."""
    for name, counted in (
        ("google/gemma-4-31B-it", 30.696e9),
        ("google/gemma-4-26B-A4B-it", 25.232e9),
    ):
        found = find(name)
        attention = sum(
            part.layers
            * found.hidden
            * part.head_dim
            * (2 * part.q_heads + part.kv_heads * (1 if part.k_is_v else 2))
            for part in found.attention
        )
        dense = 3 * found.hidden * found.intermediate * found.dense_layers
        mixture = found.experts
        sparse = (
            3 * found.hidden * mixture.intermediate * mixture.count * mixture.layers
            if mixture
            else 0
        )
        whole = attention + dense + sparse + found.vocab * found.hidden
        assert whole == pytest.approx(counted, rel=0.002)


def test_names_are_found_whatever_their_case_and_a_wrong_one_gets_a_suggestion() -> None:
    assert find("GOOGLE/gemma-4-31b-IT").layers == 60
    with pytest.raises(UsageError, match=r"did you mean 'google/gemma-4-31B-it'"):
        find("google/gema-4-31B-it")
    with pytest.raises(UsageError, match=r"no folder with a config\.json"):
        find("./nowhere")


def test_a_build_is_known_by_what_it_is_a_build_of() -> None:
    found = find("somebody/My-Gemma-Q4", base="google/gemma-4-31B-it")
    assert (found.name, found.layers) == ("somebody/My-Gemma-Q4", 60)


def test_a_folder_comes_first(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "google" / "gemma-4-31B-it"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert find("google/gemma-4-31B-it").layers == 32
    assert find(folder).layers == 32


def test_below_the_project_folder(tmp_path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text(json.dumps(LLAMA))
    assert find("models/mine", tmp_path).layers == 32


def test_the_hubs_cache(tmp_path) -> None:
    snapshots = tmp_path / "models--me--mine" / "snapshots"
    for revision, layers in (("aaa", 4), ("bbb", 8)):
        (snapshots / revision).mkdir(parents=True)
        config = {**LLAMA, "num_hidden_layers": layers}
        (snapshots / revision / "config.json").write_text(json.dumps(config))
    (tmp_path / "models--me--mine" / "refs").mkdir()
    (tmp_path / "models--me--mine" / "refs" / "main").write_text("aaa\n")
    assert find("me/mine", cache_dir=tmp_path).layers == 4
    (tmp_path / "models--me--mine" / "refs" / "main").write_text("gone")
    assert find("me/mine", cache_dir=tmp_path).layers in (4, 8)


def test_where_the_cache_is(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/a")
    assert str(hub_cache()) == "/a"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", "/b")
    assert str(hub_cache()) == "/b/hub"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert str(hub_cache()) == "/c/huggingface/hub"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\x01", '"text"'])
def test_a_file_that_is_no_config(text: str, tmp_path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidFile) as error:
        find(tmp_path)
    assert "config.json" in error.value.where


# --- weights ---------------------------------------------------------------------------------


def safetensors(*sizes: int) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = {"dtype": "U8", "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(begin)


def weights_bytes(folder: Path) -> int | None:
    source, name = Folders(), str(folder)
    found = stored_tensors(source, name, source.listing(name), str)
    return None if found is None else sum(tensor.size * tensor.count for tensor in found)


def test_weights_from_headers(tmp_path) -> None:
    assert weights_bytes(tmp_path) is None
    (tmp_path / "model-1.safetensors").write_bytes(safetensors(100, 24))
    (tmp_path / "model-2.safetensors").write_bytes(safetensors(7))
    assert weights_bytes(tmp_path) == 131
    index = tmp_path / "model.safetensors.index.json"
    mapping = {"a": "model-1.safetensors", "b": "model-3.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": mapping}))
    with pytest.raises(InvalidFile, match="is not here"):
        weights_bytes(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert weights_bytes(tmp_path) == 124
    for bad in ({"a": "../model-1.safetensors"}, {"a": "x.bin"}, []):
        index.write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(InvalidFile, match="not a safetensors index"):
            weights_bytes(tmp_path)


def test_a_folder_whose_weights_are_pointers_still_has_a_shape(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    assert (find(tmp_path).layers, find(tmp_path).stored) == (32, None)


def test_files_that_hold_the_weights_once() -> None:
    assert weight_files(["model.safetensors", "adapter_model.safetensors"]) == ["model.safetensors"]
    both = ["consolidated-1.safetensors", "model-1.safetensors", "original/x.safetensors"]
    assert weight_files(both) == ["model-1.safetensors"]
    assert weight_files(["consolidated.safetensors"]) == ["consolidated.safetensors"]
    assert weight_files(["pytorch_model.bin"]) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
        b"\x02" + bytes(7) + b"{}x",
        b"\xff" * 8,
        safetensors(10)[:20],
    ],
)
def test_a_broken_file_of_weights(content: bytes, tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    if content.startswith(b"\x02"):
        assert weights_bytes(tmp_path) == 0
        return
    with pytest.raises(InvalidFile, match="no safetensors header"):
        weights_bytes(tmp_path)


def test_an_index_that_is_none(tmp_path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InvalidFile, match="should be a JSON object"):
        weights_bytes(tmp_path)
