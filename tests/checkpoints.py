"""Checkpoints without weights: the tensors that published layouts have, and files of their headers.

Names, types and shapes are those of the public checkpoints, as their index files, `transformers`
and vLLM's loaders (`vllm/model_executor/layers/quantization`) show them:

- FP8 in blocks: Qwen/Qwen3.6-35B-A3B-FP8, DeepSeek; `weight_scale_inv`, F32, 128 x 128.
- NVFP4: NVIDIA's Model Optimizer (`weight` U8, `weight_scale` F8_E4M3, `weight_scale_2` F32) and
  compressed-tensors (`weight_packed`, `weight_scale`, `weight_global_scale`).
- 4 bits in words of 32: GPTQ and AutoRound (`qweight` packed along the input), AWQ (packed along
  the output), compressed-tensors `pack-quantized` (`weight_packed`).
- MXFP4: openai/gpt-oss (`*_blocks` and `*_scales`, U8).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cases import cases

from spark_cluster.models.checkpoint import BITS, Tensor

CONFIGS: dict[str, dict[str, Any]] = cases(__file__, "data/checkpoint_configs.json")
LLAMA_70B, NEMOTRON_SUPER, SMALL = CONFIGS.values()
"""Configs; that of Nemotron as public conversions of the model to other frameworks give it."""
STYLES: dict[str, list[list[Any]]] = cases(__file__, "data/quantization_styles.json")
"""Style to the tensors of a matrix: suffix, type and shape, where `rows/8` is an eighth of them."""


def tensor(name: str, dtype: str, *shape: int, count: int = 1) -> Tensor:
    """A tensor of this type and shape."""
    return Tensor(name, dtype, shape, math.prod(shape) * BITS[dtype] // 8, count)


def matrix(name: str, rows: int, columns: int, style: str, count: int = 1) -> Iterator[Tensor]:
    """A matrix of `rows` outputs and `columns` inputs as a style of quantization stores it."""
    sides = {"rows": rows, "columns": columns}
    for suffix, dtype, *shape in STYLES[style]:
        sizes = [
            size if isinstance(size, int) else _part(sides, *size.split("/")) for size in shape
        ]
        yield tensor(f"{name}.{suffix}", dtype, *sizes, count=count)


def _part(sides: dict[str, int], side: str, share: str = "1") -> int:
    """Return a side, or the parts of so many that it has; the last one need not be full."""
    return -(-sides[side] // int(share))


def dense(config: dict[str, Any], style: str, prefix: str = "model") -> list[Tensor]:
    """A Llama or Qwen 3 with dense layers."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, dim = config["num_attention_heads"], config["head_dim"]
    kv = config["num_key_value_heads"] * dim
    found = [tensor(f"{prefix}.embed_tokens.weight", "BF16", config["vocab_size"], hidden)]
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}.layers.{number}"
        found += matrix(f"{layer}.self_attn.q_proj", heads * dim, hidden, style)
        found += matrix(f"{layer}.self_attn.k_proj", kv, hidden, style)
        found += matrix(f"{layer}.self_attn.v_proj", kv, hidden, style)
        found += matrix(f"{layer}.self_attn.o_proj", hidden, heads * dim, style)
        for name in ("gate_proj", "up_proj"):
            found += matrix(f"{layer}.mlp.{name}", inner, hidden, style)
        found += matrix(f"{layer}.mlp.down_proj", hidden, inner, style)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found.append(tensor(f"{layer}.{name}.weight", "BF16", hidden))
    found.append(tensor(f"{prefix}.norm.weight", "BF16", hidden))
    if not config.get("tie_word_embeddings"):
        found.append(tensor("lm_head.weight", "BF16", config["vocab_size"], hidden))
    return found


def gpt_oss(config: dict[str, Any]) -> list[Tensor]:
    """gpt-oss with experts in MXFP4."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv = config["num_attention_heads"] * 64, config["num_key_value_heads"] * 64
    count = config["num_local_experts"]
    found = [tensor("model.embed_tokens.weight", "BF16", config["vocab_size"], hidden)]
    found.append(tensor("lm_head.weight", "BF16", config["vocab_size"], hidden))
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, rows in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
            found.append(tensor(f"{layer}.self_attn.{name}.weight", "BF16", rows, hidden))
            found.append(tensor(f"{layer}.self_attn.{name}.bias", "BF16", rows))
        found.append(tensor(f"{layer}.self_attn.o_proj.weight", "BF16", hidden, heads))
        found.append(tensor(f"{layer}.self_attn.sinks", "BF16", config["num_attention_heads"]))
        found.append(tensor(f"{layer}.mlp.router.weight", "BF16", count, hidden))
        experts = f"{layer}.mlp.experts"
        for name, rows, columns in (
            ("gate_up_proj", 2 * inner, hidden),
            ("down_proj", hidden, inner),
        ):
            blocks = (count, rows, columns // 32)
            found.append(tensor(f"{experts}.{name}_blocks", "U8", *blocks, 16))
            found.append(tensor(f"{experts}.{name}_scales", "U8", *blocks))
            found.append(tensor(f"{experts}.{name}_bias", "BF16", count, rows))
        found.append(tensor(f"{layer}.input_layernorm.weight", "BF16", hidden))
    return found


def nemotron_super(config: dict[str, Any]) -> list[Tensor]:
    """Nemotron 3 Super NVFP4: experts in a latent space in NVFP4, Mamba and shared experts in FP8,
    attention and latent projections in BF16; an MTP layer in BF16.
    """
    hidden = config["hidden_size"]
    found = [tensor("backbone.embeddings.weight", "BF16", config["vocab_size"], hidden)]
    found.append(tensor("lm_head.weight", "BF16", config["vocab_size"], hidden))
    for number, kind in enumerate(config["hybrid_override_pattern"]):
        layer = f"backbone.layers.{number}"
        found.append(tensor(f"{layer}.norm.weight", "BF16", hidden))
        found += {"M": _mamba, "*": _heads, "E": _latent_experts}[kind](config, f"{layer}.mixer")
    found += _heads(config, "mtp.layers.0.mixer")
    found += _latent_experts(config, "mtp.layers.1.mixer", "bf16")
    found.append(tensor("mtp.layers.0.eh_proj.weight", "BF16", hidden, 2 * hidden))
    return found


def _mamba(config: dict[str, Any], name: str) -> Iterator[Tensor]:
    heads = config["mamba_num_heads"]
    inner = heads * config["mamba_head_dim"]
    conv = inner + 2 * config["n_groups"] * config["ssm_state_size"]
    yield from matrix(f"{name}.in_proj", inner + conv + heads, config["hidden_size"], "fp8")
    yield from matrix(f"{name}.out_proj", config["hidden_size"], inner, "fp8")
    yield tensor(f"{name}.conv1d.weight", "BF16", conv, 1, config["conv_kernel"])
    for part in ("A_log", "D", "dt_bias"):
        yield tensor(f"{name}.{part}", "BF16", heads)


def _heads(config: dict[str, Any], name: str) -> Iterator[Tensor]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    yield from matrix(f"{name}.q_proj", query, hidden, "bf16")
    yield from matrix(f"{name}.k_proj", kv, hidden, "bf16")
    yield from matrix(f"{name}.v_proj", kv, hidden, "bf16")
    yield from matrix(f"{name}.o_proj", hidden, query, "bf16")


def _latent_experts(
    config: dict[str, Any], name: str, style: str = "nvfp4-modelopt"
) -> Iterator[Tensor]:
    hidden, latent = config["hidden_size"], config["moe_latent_size"]
    inner, count = config["moe_intermediate_size"], config["n_routed_experts"]
    shared = config["moe_shared_expert_intermediate_size"]
    yield from matrix(f"{name}.experts.*.up_proj", inner, latent, style, count)
    yield from matrix(f"{name}.experts.*.down_proj", latent, inner, style, count)
    fp8 = "bf16" if style == "bf16" else "fp8"
    yield from matrix(f"{name}.shared_experts.up_proj", shared, hidden, fp8)
    yield from matrix(f"{name}.shared_experts.down_proj", hidden, shared, fp8)
    yield from matrix(f"{name}.fc1_latent_proj", latent, hidden, "bf16")
    yield from matrix(f"{name}.fc2_latent_proj", hidden, latent, "bf16")
    yield tensor(f"{name}.gate.weight", "F32", count, hidden)
    yield tensor(f"{name}.gate.e_score_correction_bias", "F32", count)


def header(tensors: Iterable[Tensor]) -> tuple[bytes, int]:
    """The start of a safetensors file up to its weights, and the bytes of those."""
    listed: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for one in tensors:
        for number in range(one.count):
            end = place + one.size
            offsets = [place, end]
            name = one.name.replace("*", str(number))
            listed[name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": offsets}
            place = end
    text = json.dumps(listed).encode()
    return len(text).to_bytes(8, "little") + text, place


def write(folder: Path, config: dict[str, Any], tensors: list[Tensor], files: int = 1) -> Path:
    """A repository with these tensors; its files are as long as real ones but take no room."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mapping: dict[str, str] = {}
    for number in range(files):
        part = tensors[number::files]
        name = "model.safetensors"
        if files > 1:
            name = f"model-{number + 1:05}-of-{files:05}.safetensors"
            mapping |= {one.name: name for one in part}
        start, size = header(part)
        with (folder / name).open("wb") as file:
            file.write(start)
            file.truncate(len(start) + size)
    if mapping:
        index = {"metadata": {}, "weight_map": mapping}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
