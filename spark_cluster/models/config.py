"""The conversion of a model's config.json into its geometry, with its quantization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_cluster.models.layers import (
    BOTH,
    CHUNKED,
    FULL,
    LARGEST,
    RECURRENT,
    SLIDING,
    Keys,
    experts,
    kinds,
    recurrent,
    searched,
)
from spark_cluster.models.naming import has_trait, table
from spark_cluster.models.shape import Attention, Geometry, Latent

VISION = ("vision_config", "vit_config", "visual")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def from_config(config: Mapping[str, Any], name: str) -> Geometry:
    """The geometry of a model.

    Args:
        config: a Hugging Face `config.json`; of a multimodal model too.
        name: what the model is called, in messages and in the result.

    Raises:
        InvalidFile: the config lacks what is needed, or says what is not understood; the message
            names the key.
    """
    keys = Keys(config, name)
    of_layers = kinds(keys)
    mixture, dense = experts(keys, len(of_layers))
    heads = keys.positive("num_attention_heads", "n_head", "num_heads")
    latent = _latent(keys, of_layers, heads) or _compressed(keys, of_layers, heads)
    chosen = searched(keys, heads)
    attention = () if latent else chosen.attention if chosen else _attention(keys, of_layers, heads)
    shape = Geometry(
        name=name,
        model_type=keys.model_type or str(config.get("model_type", "")),
        architectures=_architectures(config),
        layers=len(of_layers),
        hidden=keys.positive("hidden_size", "n_embd", "d_model"),
        vocab=keys.positive("vocab_size"),
        intermediate=chosen.intermediate if chosen else _intermediate(keys, dense),
        dense_layers=chosen.dense_layers if chosen else dense,
        attention=attention,
        latent=latent,
        recurrent=recurrent(keys, sum(kind in (RECURRENT, BOTH) for kind in of_layers)),
        experts=mixture,
        tied=bool(keys.get("tie_word_embeddings", default=False)),
        max_positions=keys.number(*POSITIONS, default=0),
        rotary_width=rotary_width(keys, attention, latent),
        table_parameters=_tables(keys),
        tower_parameters=_tower(config),
        embedding_tables=_per_layer_embeddings(keys, len(of_layers)),
        quantization=quantization(config),
        kv_dtype=kv_dtype(config),
        dtype=str(keys.get("dtype", "torch_dtype", default="bfloat16")).removeprefix("torch."),
        known=keys.model_type in table("families")["known"],
        mtp_layers=keys.number(*MTP_LAYERS, default=0),
    )
    return replace(shape, not_understood=keys.not_understood())


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    found = config.get("architectures")
    names = found if isinstance(found, list) else []
    return tuple(name for name in names if isinstance(name, str))


def _attention(keys: Keys, of_layers: list[str], heads: int) -> tuple[Attention, ...]:
    """Layers of one shape together; full ones first."""
    borrowing = keys.number("num_kv_shared_layers", default=0)
    own = of_layers[: len(of_layers) - borrowing] if borrowing else of_layers
    found = []
    for kind in (FULL, SLIDING, CHUNKED):
        alike = (FULL, BOTH) if kind == FULL else (kind,)
        count = sum(item in alike for item in of_layers)
        if count:
            borrowed = count - sum(item in alike for item in own)
            queries = _heads(keys, of_layers, kind, heads) if kind in of_layers else heads
            found.append(_one_kind(keys, kind, count, borrowed, queries))
    return tuple(found)


def _heads(keys: Keys, of_layers: list[str], kind: str, heads: int) -> int:
    """Query heads of a kind of layer, which may have a number of its own (Laguna, MiMo, Step)."""
    listed = keys.get("num_attention_heads_per_layer")
    if isinstance(listed, list) and len(listed) == len(of_layers):
        own = listed[of_layers.index(kind)]
        return own if isinstance(own, int) and 0 < own <= LARGEST else heads
    if kind != SLIDING:
        return heads
    other = keys.get("attention_other_setting")
    if isinstance(other, Mapping):
        return Keys(other, keys.name).positive("num_attention_heads", default=heads)
    return keys.positive("swa_num_attention_heads", default=heads)


def _one_kind(keys: Keys, kind: str, count: int, borrowed: int, heads: int) -> Attention:
    hidden = keys.positive("hidden_size", "n_embd", "d_model")
    head_dim = keys.positive("head_dim", "attention_head_dim", default=max(1, hidden // heads))
    named = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
    kv_heads = keys.positive(*named, default=1 if keys.get("multi_query") is True else heads)
    value_dim = keys.positive("v_head_dim", default=head_dim)
    same = False
    if kind == FULL and has_trait(keys.model_type, "other_full_heads"):
        head_dim = value_dim = keys.positive("global_head_dim", default=head_dim)
        same = keys.says("attention_k_eq_v")
        if same:
            kv_heads = keys.positive("num_global_key_value_heads", default=kv_heads)
    if kind == SLIDING:  # MiMo-V2 has other heads there
        head_dim = keys.positive("swa_head_dim", default=head_dim)
        value_dim = keys.positive("swa_v_head_dim", default=value_dim)
        kv_heads = keys.positive("swa_num_key_value_heads", default=kv_heads)
    limit = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}.get(kind)
    window = keys.positive(limit) if limit else None
    sparse = keys.get("sparse_attention_config")  # MiniMax-M3
    indexer = Keys(sparse, keys.name) if isinstance(sparse, Mapping) else keys
    chosen = indexer.get("sparse_attention_freq")
    if heads % kv_heads:
        raise keys.wrong(
            f"'num_key_value_heads' {kv_heads} does not divide 'num_attention_heads' {heads}"
        )
    return Attention(
        kind="full" if kind == FULL else "sliding" if kind == SLIDING else "chunked",
        layers=count,
        q_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        window=window,
        k_is_v=same,
        borrowed=borrowed,
        gated=keys.says("attn_output_gate") or has_trait(keys.model_type, "gated_attention"),
        index_dim=indexer.number("indexer_head_dim", "sparse_index_dim", default=0),
        pooled=keys.positive("indexer_compress_ratio", default=1),
        index_layers=chosen.count(1) if isinstance(chosen, list) else None,
    )


def _latent(keys: Keys, of_layers: list[str], heads: int) -> Latent | None:
    if not keys.says("kv_lora_rank"):
        return None
    return Latent(
        layers=sum(kind == FULL for kind in of_layers),
        q_heads=heads,
        rank=keys.positive("kv_lora_rank"),
        rope_dim=keys.number("qk_rope_head_dim"),
        nope_dim=keys.positive("qk_nope_head_dim"),
        value_dim=keys.positive("v_head_dim"),
        q_rank=keys.number("q_lora_rank", default=0) or None,
        index_dim=keys.number("index_head_dim", default=0),
        index_heads=keys.number("index_n_heads", default=0),
        index_layers=_index_layers(keys),
        pooled=keys.positive("index_kpool", default=1),
    )


def _index_layers(keys: Keys) -> int | None:
    listed = keys.get("indexer_types")
    return listed.count("full") if isinstance(listed, list) and listed else None


INDEXED = 4
"""Tokens a vector of the layers with an indexer (`DeepseekV4Attention` in vLLM 0.33)."""


def _compressed(keys: Keys, of_layers: list[str], heads: int) -> Latent | None:
    """DeepSeek V4: one vector for keys and values of all heads, which most layers keep for several
    tokens only.
    """
    ratios = keys.get("compress_ratios")
    if not isinstance(ratios, list) or not keys.says("o_lora_rank"):
        return None
    own = [ratio if isinstance(ratio, int) and ratio > 1 else 1 for ratio in ratios]
    own = own[: len(of_layers)] or [1]
    rope, width = keys.positive("qk_rope_head_dim"), keys.positive("head_dim")
    if rope >= width:
        raise keys.wrong(f"'qk_rope_head_dim' {rope} should be below 'head_dim' {width}")
    keys.get("num_hash_layers")  # layers that choose experts by a hash: no matrix of their own
    sources = keys.get("kv_source_layer_ids")
    shared = isinstance(sources, list)
    keeping = [i for i, each in enumerate(own) if (i in sources if shared else each > 1)]
    return Latent(
        layers=len(of_layers),
        q_heads=heads,
        rank=width - rope,
        rope_dim=rope,
        nope_dim=width - rope,
        value_dim=width,
        q_rank=keys.positive("q_lora_rank"),
        index_dim=keys.number("index_head_dim", default=0),
        index_heads=keys.number("index_n_heads", default=0),
        index_layers=own.count(INDEXED),
        output_rank=keys.positive("o_lora_rank"),
        output_groups=keys.positive("o_groups"),
        kept=sum(1 / ratio for ratio in own) / len(own),
        compressed=tuple(sorted(Counter(own[i] for i in keeping).items())),
        window=keys.positive("sliding_window", default=128),
        shared=shared,
    )


def _intermediate(keys: Keys, dense_layers: int) -> int:
    if dense_layers == 0:
        return 0
    if keys.model_type == "llama4_text":
        return keys.positive("intermediate_size_mlp", "intermediate_size")
    if keys.model_type == "granitemoehybrid":  # without experts its shared network is the only one
        return keys.positive("shared_intermediate_size", "intermediate_size")
    if keys.model_type == "gpt2":
        return keys.positive("n_inner", default=4 * keys.positive("n_embd"))
    size = keys.positive(
        *("dense_intermediate_size", "intermediate_size", "ffn_dim", "ffn_hidden_size", "d_ff")
    )
    if keys.says("use_double_wide_mlp"):  # Gemma 4 E2B: in layers that borrow a cache; the average
        size += size * keys.number("num_kv_shared_layers", default=0) // dense_layers
    return size


def _tower(config: Mapping[str, Any]) -> int:
    """About how many parameters the vision tower has: its attention and its networks, and what
    merges patches for the language model (Qwen's: once, and for each layer that DeepStack takes).
    """
    tower = next((config[key] for key in VISION if isinstance(config.get(key), Mapping)), None)
    if tower is None:
        return 0
    keys = Keys(tower, "vision")
    hidden = keys.number("hidden_size", "embed_dim", "width", default=0)
    layers = keys.number("num_hidden_layers", "depth", "layers", default=0)
    inner = keys.number("intermediate_size", default=4 * hidden)
    kind = str(tower.get("model_type") or config.get("model_type") or "")
    matrices = 3 if has_trait(kind, "gated_tower") else 2
    found = layers * (4 * hidden * hidden + matrices * hidden * inner)
    if keys.says("spatial_merge_size") and keys.says("out_hidden_size"):
        merged = hidden * keys.number("spatial_merge_size") ** 2
        taken = keys.get("deepstack_visual_indexes") or []
        mergers = 1 + (len(taken) if isinstance(taken, list) else 0)
        found += mergers * merged * (merged + keys.number("out_hidden_size"))
    return found


def _per_layer_embeddings(keys: Keys, layers: int) -> int:
    """Gemma 3n and the small Gemma 4 look a vector up for every layer; most of it is never read."""
    width = keys.number("hidden_size_per_layer_input", default=0)
    if not width:
        return 0
    return keys.number("vocab_size_per_layer_input", "vocab_size") * layers * width


def _tables(keys: Keys) -> int:
    """Entries of tables of n-grams: DeepSeek V4.1's Engram, and Qwen's embeddings of a layer, of
    which each head has one (`ngram_vocab_size_base` rows, `heads_per_ngram` for each length).
    """
    rows = keys.get("engram_num_embeddings")
    if isinstance(rows, list):
        whole = sum(one for one in rows if isinstance(one, int) and 0 < one <= LARGEST)
        return whole * keys.number("engram_head_dim", default=0)
    layers = keys.get("ple_layer_ids")
    if not isinstance(layers, list) or not keys.says("ngram_vocab_size_base"):
        return 0
    each = keys.number("ngram_vocab_size_base") * keys.number("ple_embed_dim", default=0)
    return len(layers) * each


# The tables of rotary positions, which engines load next to a model's tensors.


def rotary_width(keys: Keys, attention: Sequence[Attention], latent: Latent | None) -> int:
    """Return the elements that the tables have for each position, all tables together."""
    family = keys.model_type
    if has_trait(family, "no_rotary_positions") or keys.get("position_embedding_type") in (
        "nope",
        "absolute",
    ):
        return 0
    if latent is not None:
        return latent.rope_dim
    factor = 1.0 if has_trait(family, "whole_heads") else _factor(keys)
    widths = [int(part.head_dim * factor) for part in attention]
    return sum(widths if has_trait(family, "table_of_each_kind") else set(widths))


def _factor(keys: Keys) -> float:
    said = keys.get("partial_rotary_factor")
    parameters = keys.get("rope_parameters")
    if said is None and isinstance(parameters, Mapping):
        said = parameters.get("partial_rotary_factor")
    if isinstance(said, int | float) and not isinstance(said, bool) and 0 < said <= 1:
        return float(said)
    usual: dict[str, float] = table("families")["rotary_factor"]
    return next((usual[begin] for begin in usual if keys.model_type.startswith(begin)), 1.0)


# The quantization of a checkpoint, in the terms of recipes.

MIXED = "mixed-precision"
UNREADABLE = "not readable"

_SECTIONS = ("quantization_config", "compression_config")

FOUR_BITS = 4
EIGHT_BITS = 8


def quantization(config: Mapping[str, Any]) -> str | None:
    """`nvfp4`, `fp8`, `mxfp4`, `awq-int4`, `gptq-int4`; None when the weights are as trained.

    A method that is none of these comes back under its own name; layers of several formats are
    `mixed-precision`, and a section that is no object is `not readable`.
    """
    found = _section(config)
    if not found and any(not isinstance(given, Mapping) for given in _given(config)):
        return UNREADABLE
    method = _word(found, "quant_method")
    experts = _of_experts(config, found)
    if experts or method == "modelopt" or (not method and found.get("quant_algo")):
        return experts or _modelopt(found)
    if method == "compressed-tensors":
        return _compressed_tensors(found)
    if method in ("awq", "gptq"):
        return _named(method, found.get("bits", FOUR_BITS))
    if method == "auto-round":  # packed as one of the two
        packing = _word(found, "packing_format")
        return _named("awq" if "awq" in packing else "gptq", found.get("bits", FOUR_BITS))
    return {"fbgemm_fp8": "fp8"}.get(method, method) or None


def _of_experts(config: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The format of experts that have one of their own, by which the model is called (DeepSeek V4:
    the rest is FP8); empty where the config says none.
    """
    if "nvfp4" in _word(found, "moe_quant_algo"):
        return "nvfp4"
    said = _word(config, "expert_dtype") or _word(found, "expert_dtype")
    return "mxfp4" if said == "fp4" and _word(found, "quant_method") == "fp8" else ""


def _named(method: str, width: Any) -> str:
    return f"{method}-int{width if isinstance(width, int) and width in range(1, 17) else '?'}"


def bits(config: Mapping[str, Any]) -> int:
    """Bits of a weight that is packed in whole numbers, as the config says; 4 when it does not."""
    found = _section(config)
    given = found.get("bits", found.get("w_bit"))
    groups = found.get("config_groups")
    if given is None and isinstance(groups, Mapping):
        widths = [_weights(group).get("num_bits") for group in groups.values()]
        given = next((width for width in widths if isinstance(width, int)), None)
    whole = isinstance(given, int) and not isinstance(given, bool)
    return given if whole and given in range(1, 17) else FOUR_BITS


def with_quantization(
    config: Mapping[str, Any], name: str, document: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The config with what a document next to it says of the quantization; its own goes first.

    Args:
        name: `hf_quant_config.json` (NVIDIA's Model Optimizer), `quantize_config.json` (AutoGPTQ)
            or `quant_config.json` (AutoAWQ).
    """
    if _section(config):
        return config
    inner = document.get("quantization")
    section = inner if isinstance(inner, Mapping) else document
    method = {"hf_quant_config.json": "modelopt", "quant_config.json": "awq"}.get(name, "gptq")
    return {**config, "quantization_config": {"quant_method": method, **section}}


def kv_dtype(config: Mapping[str, Any]) -> str | None:
    """`fp8` or `nvfp4` when the checkpoint carries scales for such a KV cache, else None."""
    found = _section(config)
    algorithm = _word(found, "kv_cache_quant_algo")
    if algorithm in ("fp8", "nvfp4"):
        return algorithm
    scheme = found.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("type") == "float":
        bits = scheme.get("num_bits")
        return "fp8" if bits == EIGHT_BITS else "nvfp4" if bits == FOUR_BITS else None
    return None


def _given(config: Mapping[str, Any]) -> list[Any]:
    """Return what is said of the quantization, of any type."""
    levels = [one for one in (config, config.get("text_config")) if isinstance(one, Mapping)]
    return [level[key] for level in levels for key in _SECTIONS if level.get(key) is not None]


def _section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((given for given in _given(config) if isinstance(given, Mapping)), {})


def _word(section: Mapping[str, Any], key: str) -> str:
    """A word in small letters; empty for anything that is none."""
    value = section.get(key)
    return value.lower() if isinstance(value, str) else ""


def _modelopt(found: Mapping[str, Any]) -> str:
    algorithm = _word(found, "quant_algo")
    if algorithm == "mixed_precision":
        return _mixed(found)
    for word in ("nvfp4", "mxfp4", "fp8"):
        if word in algorithm:
            return word
    return {"w4a16_awq": "awq-int4"}.get(algorithm, "modelopt")


def _mixed(found: Mapping[str, Any]) -> str:
    """The format of all layers that ModelOpt lists, where they have the same."""
    layers = found.get("quantized_layers")
    listed = layers.values() if isinstance(layers, Mapping) else ()
    formats = {
        _modelopt({"quant_algo": _word(one, "quant_algo")})
        for one in listed
        if isinstance(one, Mapping)
    }
    return formats.pop() if len(formats) == 1 else MIXED


def _compressed_tensors(found: Mapping[str, Any]) -> str:
    style, groups = _word(found, "format"), found.get("config_groups")
    listed = list(groups.values()) if isinstance(groups, Mapping) else []
    formats = {_of_group(group, style) for group in listed if _weights(group)}
    if len(formats) > 1:
        return MIXED
    return formats.pop() if formats else _of_group({}, style)


def _of_group(group: Any, style: str) -> str:
    """The format of the layers of a group, which may name its own; else it is the file's."""
    weights = _weights(group)
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float" and bits == EIGHT_BITS:
        return "fp8"
    own = _word(group, "format") or style
    for word in ("nvfp4", "mxfp4"):
        if word in own:
            return word
    if kind == "float" and bits == FOUR_BITS:
        return "nvfp4"
    if kind == "int" and bits == FOUR_BITS:
        return "awq-int4"
    return "compressed-tensors"


def _weights(group: Any) -> Mapping[str, Any]:
    weights: Any = group.get("weights") if isinstance(group, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}
