"""The served model and its parameters, as far as its speed depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from spark_cluster.config.engines import DEFAULT, Dialect, dialect
from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import Quantization
from spark_cluster.errors import UsageError
from spark_cluster.models import Geometry
from spark_cluster.models.as_served import checkpoint_kv_dtype, quantization_of
from spark_cluster.models.stored_tensors import StoredWeights
from spark_cluster.models.weights import load_peak_bytes, weights_of
from spark_cluster.planning.kv.dtypes import (
    FP8_DS_MLA,
    FP8_DS_MLA_BYTES,
    element,
    state_bytes,
)

BATCHED_TOKENS = 2048
"""vLLM's default on GB10. GPUs of 70 GiB and more get 8,192, but it asks NVML what they have, which
does not answer on GB10 (source: vllm-57378). The KV tokens that 0.19 logged fit this and not 8,192,
too (source: muninn-gemma4-31b)."""

MARLIN = {"linear-backend": "marlin", "moe-backend": "marlin"}
MARLIN_VARIABLE = "VLLM_TEST_FORCE_FP8_MARLIN"


@dataclass(frozen=True)
class Serving:
    """A model as it is served.

    Attributes:
        kv_dtype: of the cache, as `--kv-cache-dtype` names it.
        tp: tensor-parallel size, one node each.
        eager: without CUDA graphs (`--enforce-eager`).
        engine: that serves it.
        mxfp4_layers: words of `--mxfp4-layers`, which some images take: what is quantized to MXFP4
            when it is loaded.
        expert_parallel: experts are spread over the nodes instead of divided.
        data_parallel: ranks that divide the experts; their own steps are not predicted.
        unpacked: quantized weights are unpacked to BF16 for every product (Marlin), also where the
            chip has a format of its own.
        batched_tokens: tokens of a prompt that are computed at once.
        sockets: nodes exchange over TCP sockets, not over RDMA.
        own_head: drafts come from the model's own MTP layers, which share its output layer.
    """

    geometry: Geometry
    quantization: Quantization = "bf16"
    kv_dtype: str = "auto"
    tp: int = 1
    eager: bool = False
    engine: str = DEFAULT
    mxfp4_layers: tuple[str, ...] = ()
    expert_parallel: bool = False
    data_parallel: int = 1
    unpacked: bool = False
    batched_tokens: int = BATCHED_TOKENS
    sockets: bool = False
    own_head: bool = False

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise UsageError(f"tensor-parallel size: found {self.tp}, expected 1 or more")
        element(self.kv_dtype, self.geometry, latent=self.geometry.latent is not None)
        heads = [part.q_heads for part in self.geometry.attention]
        heads += [self.geometry.latent.q_heads] if self.geometry.latent else []
        if any(count % self.tp for count in heads):
            raise UsageError(
                f"the {min(heads)} attention heads of {self.geometry.name} cannot be divided over "
                f"{self.tp} nodes",
                hint="a tensor-parallel size must divide them without a remainder",
            )

    @cached_property
    def dialect(self) -> Dialect:
        """How its engine writes flags; whether plans are made for it."""
        return dialect(self.engine)

    @cached_property
    def weights(self) -> StoredWeights:
        """The weights in memory, by part.

        Raises:
            UsageError: neither tensors nor shape say them.
        """
        return weights_of(self.geometry, self.quantization)

    @cached_property
    def load_peak_bytes(self) -> float:
        """Most that the weights take while they are loaded, on all nodes together."""
        return load_peak_bytes(self.geometry, self.quantization)

    def kv_bytes(self, context: float) -> float:
        """Bytes of cache that one node reads in a step for one request.

        A node holds at least one key-value head, so with fewer heads than nodes some are held
        several times; the compressed vector of MLA is held whole by every node.

        Args:
            context: tokens of the request that are in the cache.
        """
        latent, total = self.geometry.latent, 0.0
        kind = element(self.kv_dtype, self.geometry, latent=latent is not None)
        for part in self.geometry.attention:
            seen = min(context, part.window) if part.window else context
            heads = max(1.0, part.kv_heads / self.tp)
            width = kind.width(part.head_dim) + kind.width(part.value_dim)
            total += part.layers * heads * width * seen
        if latent:
            whole = latent.rank + latent.rope_dim + latent.index_dim
            packed = kind.name == FP8_DS_MLA
            width = FP8_DS_MLA_BYTES if packed else kind.width(whole)
            total += latent.layers * width * context
        for layer in self.geometry.recurrent:  # a state is read and written
            state = state_bytes(None, self.geometry) * layer.conv_elements
            state += state_bytes(layer.state_dtype, self.geometry) * layer.state_elements
            total += 2 * layer.layers * state / self.tp
        return total


def of_launch(launch: Launch, geometry: Geometry) -> Serving:
    """Return what a launch serves.

    Raises:
        UsageError: its quantization, or the type of its cache, is not known here.
    """
    quantization = quantization_of(launch, geometry)
    kv_dtype = launch.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = checkpoint_kv_dtype(launch.model, quantization, geometry)
    layers = launch.text("mxfp4-layers")
    return Serving(
        geometry,
        quantization,
        kv_dtype,
        launch.tp,
        eager=launch.args.get("enforce-eager") is True,
        engine=launch.engine,
        mxfp4_layers=tuple(word.strip() for word in layers.split(",") if word.strip()),
        expert_parallel=launch.args.get("enable-expert-parallel") is True,
        data_parallel=launch.dp,
        unpacked=_unpacked(launch),
        batched_tokens=max(1, int(launch.number("max-num-batched-tokens") or BATCHED_TOKENS)),
        sockets=str(launch.env.get("NCCL_IB_DISABLE", "0")) == "1",
        own_head=launch.drafts_itself,
    )


def _unpacked(launch: Launch) -> bool:
    flags = any(launch.text(flag) == value for flag, value in MARLIN.items())
    return flags or str(launch.env.get(MARLIN_VARIABLE, "")) == "1"
