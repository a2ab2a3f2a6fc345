"""The quantization of a checkpoint, in the terms of recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FOUR_BITS = 4
EIGHT_BITS = 8


def quantization(config: Mapping[str, Any]) -> str | None:
    """`nvfp4`, `fp8`, `mxfp4`, `awq-int4`, `gptq-int4`; None when the weights are as trained.

    A method that is none of these comes back under its own name.
    """
    found = _section(config)
    method = _word(found, "quant_method")
    if method == "modelopt" or (not method and found.get("quant_algo")):
        return _modelopt(found)
    if method == "compressed-tensors":
        return _compressed_tensors(found)
    if method in ("awq", "gptq"):
        bits = found.get("bits", FOUR_BITS)
        return f"{method}-int{bits if isinstance(bits, int) and bits in range(1, 17) else '?'}"
    return {"fbgemm_fp8": "fp8"}.get(method, method) or None


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


def _section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for level in (config, config.get("text_config")):
        if isinstance(level, Mapping):
            for key in ("quantization_config", "compression_config"):
                if isinstance(level.get(key), Mapping):
                    section: Mapping[str, Any] = level[key]
                    return section
    return {}


def _word(section: Mapping[str, Any], key: str) -> str:
    """A word in small letters; empty for anything that is none."""
    value = section.get(key)
    return value.lower() if isinstance(value, str) else ""


def _modelopt(found: Mapping[str, Any]) -> str:
    algorithm = _word(found, "quant_algo")
    for word in ("nvfp4", "mxfp4", "fp8"):
        if word in algorithm:
            return word
    return {"w4a16_awq": "awq-int4", "mixed_precision": "nvfp4"}.get(algorithm, "modelopt")


def _compressed_tensors(found: Mapping[str, Any]) -> str:
    style = _word(found, "format")
    for word in ("nvfp4", "mxfp4"):
        if word in style:
            return word
    groups = found.get("config_groups")
    first: Any = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights: Any = first.get("weights") if isinstance(first, Mapping) else None
    weights = weights if isinstance(weights, Mapping) else {}
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float" and bits == EIGHT_BITS:
        return "fp8"
    if kind == "float" and bits == FOUR_BITS:
        return "nvfp4"
    if kind == "int" and bits == FOUR_BITS:
        return "awq-int4"
    return "compressed-tensors"
