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
LAYOUTS: dict[str, dict[str, list[list[Any]]]] = cases(__file__, "data/checkpoint_layouts.json")
"""Layout to its parts, each with names, a type and a shape, or a style and the matrix."""


def tensor(name: str, dtype: str, *shape: int, count: int = 1) -> Tensor:
    """A tensor of this type and shape."""
    return Tensor(name, dtype, shape, math.prod(shape) * BITS[dtype] // 8, count)


def matrix(name: str, rows: int, columns: int, style: str, count: int = 1) -> Iterator[Tensor]:
    """A matrix of `rows` outputs and `columns` inputs as a style of quantization stores it."""
    sides = {"rows": rows, "columns": columns}
    for suffix, dtype, *shape in STYLES[style]:
        yield tensor(f"{name}.{suffix}", dtype, *(_size(one, sides) for one in shape), count=count)


def _size(told: int | str, sides: dict[str, int]) -> int:
    """Return a number, a side, or into how many parts of so many it goes, a last short one too."""
    if isinstance(told, int):
        return told
    side, _, part = told.partition("/")
    return -(-sides[side] // int(part or 1))


def _laid_out(
    rows: list[list[Any]], prefix: str, sides: dict[str, int], **styles: tuple[str, int]
) -> Iterator[Tensor]:
    """The tensors of a part of a layout; `styles` are style and number of matrices by their word
    in it."""
    for name, kind, *shape in rows:
        sizes = [_size(one, sides) for one in shape]
        if kind in BITS:
            yield tensor(prefix + name, kind, *sizes)
        else:
            style, count = styles.get(kind, (kind, 1))
            yield from matrix(prefix + name, *sizes, style, count)


def _sides(config: dict[str, Any], head: int) -> dict[str, int]:
    """Sizes that all layouts have; `head` is that of an attention head."""
    return {
        "hidden": config["hidden_size"], "inner": config["intermediate_size"],
        "vocab": config["vocab_size"], "heads": config["num_attention_heads"],
        "query": config["num_attention_heads"] * head, "kv": config["num_key_value_heads"] * head,
    }  # fmt: skip


def dense(config: dict[str, Any], style: str, prefix: str = "model") -> list[Tensor]:
    """A Llama or Qwen 3 with dense layers."""
    layout, sides = LAYOUTS["dense"], _sides(config, config["head_dim"])
    found = [*_laid_out(layout["begin"], f"{prefix}.", sides)]
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}.layers.{number}."
        found += _laid_out(layout["layer"], layer, sides, style=(style, 1))
    found += _laid_out(layout["end"], f"{prefix}.", sides)
    if not config.get("tie_word_embeddings"):
        found.append(tensor("lm_head.weight", "BF16", config["vocab_size"], sides["hidden"]))
    return found


def gpt_oss(config: dict[str, Any]) -> list[Tensor]:
    """gpt-oss with experts in MXFP4."""
    layout, sides = LAYOUTS["gpt_oss"], _sides(config, 64)
    sides |= {"experts": config["num_local_experts"], "both": 2 * sides["inner"]}
    found = [*_laid_out(layout["begin"], "", sides)]
    for number in range(config["num_hidden_layers"]):
        found += _laid_out(layout["layer"], f"model.layers.{number}.", sides)
    return found


def nemotron_super(config: dict[str, Any]) -> list[Tensor]:
    """Nemotron 3 Super NVFP4: experts in a latent space in NVFP4, Mamba and shared experts in FP8,
    attention and latent projections in BF16; an MTP layer in BF16.
    """
    layout, count = LAYOUTS["nemotron"], config["n_routed_experts"]
    sides = _sides(
        {"intermediate_size": config["moe_intermediate_size"], **config}, config["head_dim"]
    )
    state = config["mamba_num_heads"] * config["mamba_head_dim"]
    conv = state + 2 * config["n_groups"] * config["ssm_state_size"]
    sides |= {
        "latent": config["moe_latent_size"],
        "shared": config["moe_shared_expert_intermediate_size"], "count": count,
        "mamba_heads": config["mamba_num_heads"], "state": state, "conv": conv,
        "mamba": state + conv + config["mamba_num_heads"], "kernel": config["conv_kernel"],
        "twice": 2 * config["hidden_size"],
    }  # fmt: skip
    styles = {"experts": ("nvfp4-modelopt", count), "shared": ("fp8", 1)}
    found = [*_laid_out(layout["begin"], "", sides)]
    for number, kind in enumerate(config["hybrid_override_pattern"]):
        layer = f"backbone.layers.{number}"
        found.append(tensor(f"{layer}.norm.weight", "BF16", config["hidden_size"]))
        found += _laid_out(layout[kind], f"{layer}.mixer.", sides, **styles)
    plain = {"experts": ("bf16", count), "shared": ("bf16", 1)}
    found += _laid_out(layout["*"], "mtp.layers.0.mixer.", sides)
    found += _laid_out(layout["E"], "mtp.layers.1.mixer.", sides, **plain)
    return [*found, *_laid_out(layout["end"], "", sides)]


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
