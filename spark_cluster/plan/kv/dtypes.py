"""Bytes of an element in a KV cache of a given type."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.models.shape import Geometry

BYTES = {
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
"""vLLM's `--kv-cache-dtype`, and the types a model's config names; `bf16` is ours."""

NVFP4 = "nvfp4"
NVFP4_GROUP = 16
"""Elements that share one scale of a byte."""

FP8_DS_MLA = "fp8_ds_mla"
FP8_DS_MLA_BYTES = 656
"""Of one token: 512 in fp8, 4 scales of 4 bytes, 64 rotary elements in 16 bits (FlashMLA)."""


@dataclass(frozen=True)
class Element:
    """The element type of the cache."""

    name: str
    bytes: int = 1
    packed: bool = False

    def width(self, elements: int) -> int:
        """Bytes of that many elements of one head."""
        if self.packed:  # two in a byte, and a scale for each group
            return elements // 2 + elements // NVFP4_GROUP
        return elements * self.bytes


def element(name: str, geometry: Geometry, *, latent: bool = False) -> Element:
    """Return the element type that `--kv-cache-dtype NAME` gives for a model.

    `auto` is what the checkpoint asks for, else the type of the activations.

    Raises:
        UsageError: there is no such type.
    """
    wanted = name.strip().lower()
    if wanted == "auto":
        wanted = (geometry.kv_dtype or geometry.dtype).lower()
        wanted = "bfloat16" if wanted == "auto" else wanted
    if wanted == NVFP4:
        return Element(NVFP4, packed=True)
    if wanted == FP8_DS_MLA and latent:
        return Element(FP8_DS_MLA)
    if wanted not in BYTES:
        known = ("auto", *BYTES, NVFP4)
        raise UsageError(
            f"there is no KV cache type {name!r}", hint=did_you_mean(wanted, known, "known types")
        )
    return Element(wanted, BYTES[wanted])


def state_bytes(name: str | None, geometry: Geometry) -> int:
    """Bytes of an element of a recurrent state; None: as the model's activations."""
    return BYTES.get((name or geometry.dtype).lower(), 2)
