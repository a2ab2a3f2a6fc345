"""What is served, as far as its speed follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.errors import UsageError
from spark_cluster.launch import Launch
from spark_cluster.planning.geometry import Geometry
from spark_cluster.planning.weights import must_be_known
from spark_cluster.userfiles.recipe_file import Quantization

_ELEMENT_BYTES = {
    "bf16": 2.0,
    "bfloat16": 2.0,
    "fp16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "nvfp4": 0.5625,
}

STATE_BYTES = 2
"""An element of a recurrent layer's state, as vLLM keeps it unless told otherwise."""


@dataclass(frozen=True)
class Serving:
    """A model as it is served.

    Attributes:
        kv_dtype: of the cache, as `--kv-cache-dtype` names it.
        tp: tensor-parallel size, one node each.
    """

    geometry: Geometry
    quantization: Quantization = "bf16"
    kv_dtype: str = "auto"
    tp: int = 1

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise UsageError(f"tensor-parallel size: found {self.tp}, expected 1 or more")
        kv_element_bytes(self.kv_dtype)

    def kv_bytes(self, context: float) -> float:
        """Bytes of cache that one node reads in a step for one request.

        A node holds at least one key-value head, so with fewer heads than nodes some are held
        several times; the compressed vector of MLA is held whole by every node.

        Args:
            context: tokens of the request that are in the cache.
        """
        size, total = kv_element_bytes(self.kv_dtype), 0.0
        for part in self.geometry.attention:
            seen = min(context, part.window) if part.window else context
            heads = max(1.0, part.kv_heads / self.tp)
            total += part.layers * heads * (part.head_dim + part.value_dim) * seen * size
        latent = self.geometry.latent
        if latent:
            total += latent.layers * (latent.rank + latent.rope_dim) * context * size
        for layer in self.geometry.recurrent:  # read and written
            elements = layer.conv_elements + layer.state_elements
            total += 2 * layer.layers * elements * STATE_BYTES / self.tp
        return total


def kv_element_bytes(kv_dtype: str) -> float:
    """Bytes of one element of the cache.

    Raises:
        UsageError: no such type is known.
    """
    known = _ELEMENT_BYTES.get(kv_dtype.lower(), 2.0 if kv_dtype == "auto" else None)
    if known is None:
        names = ", ".join(["auto", *_ELEMENT_BYTES])
        raise UsageError(f"no type '{kv_dtype}' of a KV cache", hint=f"types: {names}")
    return known


def of_launch(launch: Launch, geometry: Geometry) -> Serving:
    """What a launch serves.

    Without a word on the quantisation the weights are taken as the model's config says, and as BF16
    when it says nothing. Without `--kv-cache-dtype` the cache is BF16, but FP8 for ModelOpt's NVFP4
    builds, whose config asks for it (Gemma-4-31B NVFP4 on a single DGX Spark).

    Raises:
        UsageError: the config names a quantisation that is not known here.
    """
    quantization = launch.quantization or must_be_known(geometry.quantization or "bf16")
    kv_dtype = launch.text("kv-cache-dtype") or "auto"
    if kv_dtype == "auto" and quantization == "nvfp4":
        kv_dtype = "fp8"
    return Serving(geometry, quantization, kv_dtype, launch.tp)
