"""The bytes of a model's parts, counted from the tensors of its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.models.quantization import bits, quantization
from spark_cluster.models.safetensors_header import Tensor
from spark_cluster.models.shape import Geometry
from spark_cluster.models.stored_tensors import (
    MATRICES,
    PARTS,
    REPLICATED,
    Part,
    StoredPart,
    StoredWeights,
)
from spark_cluster.models.tensor_parts import WHOLE, numbers, part_of

FORMATS: Mapping[str, str] = {
    **dict.fromkeys(("BF16", "F16", "F32", "F64"), "bf16"),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), "fp8"),
    "I8": "int8",
}
"""Types of tensors whose elements are weights; packed ones are told apart by their scales."""

KNOWN = ("bf16", "fp8", "nvfp4", "mxfp4", "awq-int4", "gptq-int4")

TOWER_HELD_WHOLE = ("gemma3n", "gemma4")
"""Families whose towers vLLM takes from `transformers`, undivided."""


_SHARED_WITH_MODEL = re.compile(r"(embed_tokens|shared_head\.head|lm_head)\.")
"""Copies that MTP layers have in the checkpoint; vLLM takes the model's."""


@dataclass
class _Sum:
    """What is counted of one part."""

    parameters: int = 0
    bytes: float = 0.0
    whole: float = 0.0
    formats: dict[str, int] = field(default_factory=dict)

    def add(self, parameters: int, size: float, label: str, *, whole: bool) -> None:
        self.parameters += parameters
        self.bytes += size
        self.whole += size if whole else 0.0
        if parameters:
            self.formats[label] = self.formats.get(label, 0) + parameters

    @property
    def format(self) -> str:
        return max(self.formats, key=lambda label: self.formats[label], default="bf16")


def count(
    tensors: Iterable[Tensor], geometry: Geometry, config: Mapping[str, Any]
) -> StoredWeights:
    """Count what a checkpoint's weights take in memory.

    Args:
        tensors: of all files.
        config: with the quantization that the checkpoint declares.
    """
    every = list(tensors)
    packed_bits = bits(config)
    in_words = _of_words(config, packed_bits)
    in_bytes = _of_bytes(every, config)
    sums: dict[Part, _Sum] = {name: _Sum() for name in PARTS}
    for tensor in every:
        part = part_of(tensor.name, geometry.layers)
        if part == "drafter" and _SHARED_WITH_MODEL.search(tensor.name):
            continue
        found = numbers(tensor, packed_bits)
        label = {"int": in_words, "float": in_bytes}.get(
            found.packed, FORMATS.get(tensor.dtype, "bf16")
        )
        whole = part in REPLICATED or bool(WHOLE.search(f".{tensor.name}."))
        whole = whole or (part == "other" and geometry.model_type.startswith(TOWER_HELD_WHOLE))
        as_stored = part == "router"  # routers are computed in 32 bits where they are stored so
        size = float(tensor.size * tensor.count) if as_stored else found.loaded
        sums[part].add(found.parameters, size, label, whole=whole)
    tied = geometry.tied or not sums["output"].bytes
    if geometry.tied and sums["output"].bytes:  # some checkpoints store the tied layer twice
        sums["output"] = _Sum()
    experts = geometry.experts
    return StoredWeights(
        tuple(_part(name, found) for name, found in sums.items() if found.bytes),
        quantization=_whole_model(sums),
        experts=experts.count if experts else 0,
        top_k=experts.top_k if experts else 0,
        tied=tied,
        counted=True,
    )


def _part(name: Part, found: _Sum) -> StoredPart:
    return StoredPart(name, found.parameters, found.bytes, found.whole, found.format)


def _of_words(config: Mapping[str, Any], packed_bits: int) -> str:
    """The format of weights that are packed in 32-bit words."""
    declared = quantization(config) or ""
    if packed_bits >= 8:
        return "int8"
    return "awq-int4" if declared.startswith("awq") else "gptq-int4"


def _of_bytes(tensors: Iterable[Tensor], config: Mapping[str, Any]) -> str:
    """The format of weights that are packed in pairs: by their scales, else as declared."""
    for tensor in tensors:
        if tensor.name.endswith(("weight_scale", "_scales", "weight_scale_inv")):
            if tensor.dtype == "F8_E4M3" and len(tensor.shape) > 1:
                return "nvfp4"
            if tensor.dtype in ("U8", "F8_E8M0"):
                return "mxfp4"
    declared = quantization(config)
    return declared if declared in ("nvfp4", "mxfp4", "awq-int4") else "gptq-int4"


def _whole_model(sums: Mapping[Part, _Sum]) -> str:
    """The format that says most about the whole: the one that most weights of matrices have; for
    one that recipes have no word for, the nearest by size.
    """
    together: dict[str, int] = {}
    for name in MATRICES:
        for label, number in sums[name].formats.items():
            together[label] = together.get(label, 0) + number
    most = max(together, key=lambda label: together[label], default="bf16")
    return most if most in KNOWN else "fp8"
