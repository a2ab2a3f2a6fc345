"""The quantization of a checkpoint, in the terms of recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    if not found and _is_not_an_object(config):
        return UNREADABLE
    method = _word(found, "quant_method")
    if method == "modelopt" or (not method and found.get("quant_algo")):
        return _modelopt(found)
    if method == "compressed-tensors":
        return _compressed_tensors(found)
    if method in ("awq", "gptq"):
        return _named(method, found.get("bits", FOUR_BITS))
    if method == "auto-round":  # packed as one of the two
        packing = _word(found, "packing_format")
        return _named("awq" if "awq" in packing else "gptq", found.get("bits", FOUR_BITS))
    return {"fbgemm_fp8": "fp8"}.get(method, method) or None


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


def _is_not_an_object(config: Mapping[str, Any]) -> bool:
    return any(not isinstance(given, Mapping) for given in _given(config))


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
