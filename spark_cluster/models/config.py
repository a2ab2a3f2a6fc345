"""The conversion of a model's config.json into its geometry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_cluster.models.keys import Keys
from spark_cluster.models.layers import (
    BOTH,
    CHUNKED,
    FULL,
    RECURRENT,
    SLIDING,
    experts,
    kinds,
    recurrent,
)
from spark_cluster.models.quantization import kv_dtype, quantization
from spark_cluster.models.shape import Attention, Geometry, Latent
from spark_cluster.models.tables import has_trait, table

VISION = ("vision_config", "vit_config", "visual")


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
    latent = _latent(keys, of_layers, heads)
    attention = () if latent else _attention(keys, of_layers, heads)
    shape = Geometry(
        name=name,
        model_type=keys.model_type or str(config.get("model_type", "")),
        architectures=_architectures(config),
        layers=len(of_layers),
        hidden=keys.positive("hidden_size", "n_embd", "d_model"),
        vocab=keys.positive("vocab_size"),
        intermediate=_intermediate(keys, dense),
        dense_layers=dense,
        attention=attention,
        latent=latent,
        recurrent=recurrent(keys, sum(kind in (RECURRENT, BOTH) for kind in of_layers)),
        experts=mixture,
        tied=bool(keys.get("tie_word_embeddings", default=False)),
        max_positions=keys.number(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=0
        ),
        rotary_width=rotary_width(keys, attention, latent),
        other_parameters=_tower(config) + _per_layer_embeddings(keys, len(of_layers)),
        quantization=quantization(config),
        kv_dtype=kv_dtype(config),
        dtype=str(keys.get("dtype", "torch_dtype", default="bfloat16")).removeprefix("torch."),
        known=keys.model_type in table("families")["known"],
        mtp_layers=keys.number(
            "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", default=0
        ),
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
            found.append(_one_kind(keys, kind, count, borrowed, heads))
    return tuple(found)


def _one_kind(keys: Keys, kind: str, count: int, borrowed: int, heads: int) -> Attention:
    hidden = keys.positive("hidden_size", "n_embd", "d_model")
    head_dim = keys.positive("head_dim", "attention_head_dim", default=max(1, hidden // heads))
    usual_kv = 1 if keys.get("multi_query") is True else heads
    kv_heads = keys.positive("num_key_value_heads", "num_kv_heads", "n_head_kv", default=usual_kv)
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
    named = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}.get(kind)
    window = keys.positive(named) if named else None
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
    )


def _latent(keys: Keys, of_layers: list[str], heads: int) -> Latent | None:
    if not keys.says("kv_lora_rank"):
        return None
    return Latent(
        layers=sum(kind == FULL for kind in of_layers),
        q_heads=heads,
        rank=keys.positive("kv_lora_rank"),
        rope_dim=keys.positive("qk_rope_head_dim"),
        nope_dim=keys.positive("qk_nope_head_dim"),
        value_dim=keys.positive("v_head_dim"),
        q_rank=keys.number("q_lora_rank", default=0) or None,
        index_dim=keys.number("index_head_dim", default=0),
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
    return keys.positive("intermediate_size", "ffn_dim", "ffn_hidden_size", "d_ff")


def _tower(config: Mapping[str, Any]) -> int:
    """About how many parameters the vision tower has: its attention and its networks."""
    tower = next((config[key] for key in VISION if isinstance(config.get(key), Mapping)), None)
    if tower is None:
        return 0
    keys = Keys(tower, "vision")
    hidden = keys.number("hidden_size", "embed_dim", "width", default=0)
    layers = keys.number("num_hidden_layers", "depth", "layers", default=0)
    inner = keys.number("intermediate_size", default=4 * hidden)
    matrices = 3 if str(tower.get("model_type", "")).startswith("gemma4") else 2
    return layers * (4 * hidden * hidden + matrices * hidden * inner)


def _per_layer_embeddings(keys: Keys, layers: int) -> int:
    """Gemma 3n and the small Gemma 4 look a vector up for every layer; most of it is never read."""
    width = keys.number("hidden_size_per_layer_input", default=0)
    if not width:
        return 0
    return keys.number("vocab_size_per_layer_input", "vocab_size") * layers * width


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
