"""The part of a model that a tensor belongs to, by its name, and what its numbers are.

Names are those of published checkpoints: Llama, Qwen, Gemma, gpt-oss, DeepSeek, GLM, Mistral,
Granite, Nemotron-H and LFM2 as `transformers` writes them. What is in a layer and has a name that
is not known counts as read for every token, so that nothing is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from spark_cluster.models.safetensors_header import Tensor
from spark_cluster.models.stored_tensors import Part

_TOWER = re.compile(
    r"(vision|visual|vit|image|audio|speech|sound|video|talker|token2wav|code2wav|radio_model"
    r"|multi_modal|multimodal|mm_|embed_vision|embed_audio|resampler|aligner|mlp1$"
    r"|patch_merg|patch_embed|img_|perceiver|connector$)"
)
_DRAFTER = re.compile(r"(mtp|nextn|eagle|medusa)")
_SHARED = re.compile(r"shared?_(expert|mlp)")
_ROUTER = {"gate", "router", "e_score_correction_bias", "expert_bias", "moe_gate", "gate_weight"}
_RECURRENT = {"linear_attn", "mamba", "ssm", "conv", "short_conv", "gated_delta_net", "kda"}
_MIXER_STATE = {"in_proj", "out_proj", "conv1d", "a_log", "d", "dt_bias", "norm"}
"""What a `mixer` of Nemotron-H has where it is a Mamba 2 layer."""
_MIXER_HEADS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_EMBEDDING = re.compile(r"(embed_tokens|embeddings?|wte|tok_embeddings|word_embeddings|embed_in)$")
_OUTPUT = {"lm_head", "output", "embed_out", "score", "classifier", "head"}
_LONGEST_NUMBER = 6

WHOLE = re.compile(
    r"\.(q_a_proj|kv_a_proj_with_mqa|kv_a_proj|fused_qkv_a_proj|wq_a|wkv_a|indexer"
    r"|fc[12]_latent_proj|shared_expert_gate)\."
)
"""Matrices that every rank holds in full besides routers (vLLM: `ReplicatedLinear`)."""

_WITH_WEIGHTS = re.compile(
    r"(scales?|scale_inv|scale_2|zeros|zero_point|zero_points|g_idx|weight_shape|absmax|quant_map"
    r"|quant_state\..*|bitsandbytes__\w+|perm|suh|svh)$"
)
"""Ends of names of what goes with quantized weights and is none."""


def part_of(name: str, layers: int) -> Part:
    """The part of a model that a tensor of this name belongs to.

    Args:
        layers: of the model; those from there on are MTP layers (DeepSeek, GLM).
    """
    words = name.lower().split(".")
    if any(_TOWER.match(word) for word in words):
        return "other"
    if any(_DRAFTER.match(word) for word in words):
        return "drafter"
    numbers = (i for i, w in enumerate(words) if w.isdecimal() and len(w) <= _LONGEST_NUMBER)
    place = next(numbers, None)
    if place is None:
        return _outside(words)
    if int(words[place]) >= layers:
        return "drafter"
    return _in_a_layer(words[place + 1 :])


def _outside(words: list[str]) -> Part:
    """Outside of the layers."""
    names = words[:-1] if len(words) > 1 else words
    if any(word.endswith("per_layer") and word.startswith("embed") for word in names):
        return "lookup"
    if _OUTPUT & set(names):
        return "output"
    if any(_EMBEDDING.match(word) for word in names):
        return "embedding"
    if any("norm" in word for word in words):
        return "norms"
    if any("pos" in word and "embed" in word for word in names):
        return "lookup"
    return "mlp"


def _in_a_layer(words: list[str]) -> Part:
    found = set(words)
    recurrent = bool(found & _RECURRENT)
    experts = any(word.endswith("experts") or word == "switch_mlp" for word in words)
    stacked = "block_sparse_moe" in found and bool(found & {"input_linear", "output_linear"})
    norm = any(word.endswith("norm") for word in words[:-1])
    attention = any("attn" in word or "attention" in word for word in words)
    holds: tuple[tuple[Part, bool], ...] = (
        ("shared", any(_SHARED.match(word) for word in words)),
        ("router", bool(found & _ROUTER)),
        ("experts", experts or stacked),
        ("norms", norm and not recurrent and "mixer" not in found),
        ("recurrent", recurrent or ("mixer" in found and bool(found & _MIXER_STATE))),
        ("attention", attention or bool(found & _MIXER_HEADS)),
    )
    return next((part for part, is_so in holds if is_so), "mlp")


@dataclass(frozen=True)
class Numbers:
    """The numbers that a tensor holds.

    Attributes:
        parameters: weights, unpacked; 0 for scales and the like.
        packed: `int` or `float` for several weights in a word, else empty.
        loaded: bytes in memory, all of its kind: what is stored with 32 bits is loaded with 16.
    """

    parameters: int
    packed: Literal["", "int", "float"]
    loaded: float


def numbers(tensor: Tensor, bits: int) -> Numbers:
    """The weights in a tensor.

    Args:
        bits: of a weight that is packed in whole numbers.
    """
    size = float(tensor.size * tensor.count)
    if _WITH_WEIGHTS.search(tensor.name):
        return Numbers(0, "", size)
    each = tensor.elements * tensor.count
    if tensor.dtype in ("I32", "U32", "I64"):
        if len(tensor.shape) <= 1:
            return Numbers(0, "", size)
        width = 64 if tensor.dtype == "I64" else 32
        return Numbers(each * width // bits, "int", size)
    if tensor.dtype == "U8":
        return Numbers(each * 2, "float", size)
    if tensor.dtype in ("F32", "F64") and len(tensor.shape) > 1:
        return Numbers(each, "", 2.0 * each)
    return Numbers(each, "", size)
