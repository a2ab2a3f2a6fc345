"""The served model and its parameters, as far as its speed depends on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from spark_cluster.config.engines import DEFAULT, Dialect, dialect
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Quantization
from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import Hub, find
from spark_cluster.models.shape import EVERY_TOKEN, Geometry, Part, StoredPart, StoredWeights
from spark_cluster.models.weights import (
    BYTES,
    checkpoint_kv_dtype,
    load_peak_bytes,
    multiplies_in_16_bits,
    quantization_of,
    weights_of,
)
from spark_cluster.plan.acceptance import AT_ONCE, kind_of
from spark_cluster.plan.kv_layout import DS_MLA_BYTES, element, state_bytes
from spark_cluster.plan.kv_rules import given_version

BATCHED_TOKENS = 2048
"""vLLM's default on GB10. GPUs of 70 GiB and more get 8,192, but it asks NVML what they have, which
does not answer on GB10 (source: vllm-57378). The KV tokens that 0.19 logged fit this and not 8,192,
too (source: muninn-gemma4-31b)."""

MARLIN = {"linear-backend": "marlin", "moe-backend": "marlin"}
MARLIN_VARIABLES = {
    "VLLM_TEST_FORCE_FP8_MARLIN": ("1", Version("0.29")),
    "VLLM_NVFP4_GEMM_BACKEND": ("marlin", Version("0.24")),
}
"""Variables that had weights unpacked, with the value and the first vLLM without them
(`vllm/envs.py`)."""


class NotDivisible(UsageError):
    """No engine starts the model at this tensor-parallel size."""


@dataclass(frozen=True)
class ServingSetup:
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
        drafts_at_once: a drafter of its own weights drafts all tokens of a step in one pass, and
            shares the output layer.
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
    drafts_at_once: bool = False

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise UsageError(f"tensor-parallel size: found {self.tp}, expected 1 or more")
        element(self.kv_dtype, self.geometry, latent=self.geometry.latent is not None)
        heads = [part.q_heads for part in self.geometry.attention]
        heads += [self.geometry.latent.q_heads] if self.geometry.latent else []
        if any(count % self.tp for count in heads):
            raise NotDivisible(
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

    def unpacks(self, form: str) -> bool:
        """Return whether weights in a format are unpacked to BF16 for every product."""
        return self.unpacked or (form == "nvfp4" and multiplies_in_16_bits(self.geometry))

    def multiplies_fp4(self, form: str) -> bool:
        """Return whether experts in a format are multiplied as FP4."""
        native = form == "nvfp4" and not self.unpacks(form)
        return native or (form == "mxfp4" and "moe" in self.mxfp4_layers)

    @cached_property
    def load_peak_bytes(self) -> float:
        """Most that the weights take while they are loaded, on all nodes together."""
        return load_peak_bytes(self.geometry, self.quantization)

    def kv_bytes(self, context: float, drafted: int = 0) -> float:
        """Bytes of cache that one node reads in a step for one request; of recurrent layers also
        those that it writes.

        A node holds at least one key-value head, so with fewer heads than nodes some are held
        several times; the compressed vector of MLA is held whole by every node.

        Args:
            context: tokens of the request that are in the cache.
            drafted: tokens that are verified next to its own one: of each a recurrent layer writes
                the state, as the last accepted one is known only then (`speculative_states` of
                plan/data/kv_rules.toml).
        """
        latent, total = self.geometry.latent, 0.0
        kind = element(self.kv_dtype, self.geometry, latent=latent is not None)
        for part in self.geometry.attention:
            seen = min(context, part.window) if part.window else context
            heads = max(1.0, part.kv_heads / self.tp)
            total += part.layers * heads * kind.slot(part.head_dim, part.value_dim) * seen
        if latent:
            whole = latent.rank + latent.rope_dim + latent.index_dim
            width = DS_MLA_BYTES.get(kind.name, kind.width(whole))
            total += latent.layers * width * latent.kept * context
        for layer in self.geometry.recurrent:
            state = state_bytes(None, self.geometry) * layer.conv_elements
            state += state_bytes(layer.state_dtype, self.geometry) * layer.state_elements
            total += (2 + drafted) * layer.layers * state / self.tp
        return total


def of_launch(launch: Launch, geometry: Geometry) -> ServingSetup:
    """Return what a launch serves.

    Raises:
        UsageError: its quantization, or the type of its cache, is not known here.
    """
    quantization = quantization_of(launch, geometry)
    kv_dtype = launch.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = checkpoint_kv_dtype(launch.model, quantization, geometry)
    layers = launch.text("mxfp4-layers")
    return ServingSetup(
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
        drafts_at_once=kind_of(str(launch.speculative.get("method", ""))) in AT_ONCE,
    )


def serving_of(recipe: Recipe, tp: int, *folders: Path, hub: Hub | None = None) -> ServingSetup:
    """Return what a recipe serves.

    Args:
        folders: where the folders of models are looked for, too.
        hub: where the model is looked up; None: what is kept on this machine.

    Raises:
        UsageError: the model's shape, its quantization or the type of its cache is not known, or
            it cannot be divided so.
        InvalidFile: its config.json is wrong.
    """
    launch = of_recipe(recipe, tp)
    where = recipe.model.directory or recipe.model.name
    revision = launch.revisions.get(recipe.model.name) or "main"
    shape = find(where, *folders, base=recipe.model.base, hub=hub, revision=revision)
    return of_launch(launch, shape)


def _unpacked(launch: Launch) -> bool:
    flags = any(launch.text(flag) == value for flag, value in MARLIN.items())
    return flags or any(
        str(launch.env.get(name, "")).lower() == value
        and ((version := given_version(launch.vllm)) is None or version < gone)
        for name, (value, gone) in MARLIN_VARIABLES.items()
    )


# The weights that a node reads in a step, by the kernels that read them.

FP4 = ("nvfp4", "mxfp4")
FOUR_BITS = (*FP4, "awq-int4", "gptq-int4")

MXFP4_LAYERS: dict[str, Part] = {"qkv": "attention", "o": "attention", "lm_head": "output"}
"""Words of `--mxfp4-layers` (spark-vllm-mxfp4-docker) and the part that each is of; `moe` is in
that format anyway."""


@dataclass(frozen=True)
class Reading:
    """Bytes of weights that one node reads in a step.

    Attributes:
        dense: matrices that every token passes, in BF16, FP8 or INT4; also the output layer.
        dense_fp4: the same in NVFP4 or MXFP4.
        experts: chosen experts in BF16 or FP8.
        experts_4bit: the same in 4 bits, unpacked to BF16 as they are read (Marlin).
        experts_fp4: the same in NVFP4, multiplied as such.
    """

    dense: float
    dense_fp4: float
    experts: float
    experts_4bit: float
    experts_fp4: float = 0.0

    @property
    def all_experts(self) -> float:
        """Bytes of experts in any format."""
        return self.experts + self.experts_4bit + self.experts_fp4

    @property
    def total(self) -> float:
        """All bytes."""
        return self.dense + self.dense_fp4 + self.all_experts


def weights_read(serving: ServingSetup, tokens: float = 1, sharing: float = 1.0) -> Reading:
    """Compute what a node reads in a step.

    Args:
        tokens: in the step: one a request, more with drafted ones.
        sharing: tokens to this power are as many as choose their experts independently.
    """
    stored = serving.weights
    dense = fp4 = 0.0
    for name in (*EVERY_TOKEN, _output(stored)):
        part = _as_served(stored.part(name), serving)
        size = part.whole + (part.bytes - part.whole) / serving.tp
        if part.format in FP4 and not serving.unpacks(part.format):
            fp4 += size
        else:
            dense += size
    experts = stored.part("experts")
    size = _experts(stored, experts.bytes, serving, tokens**sharing)
    kinds = dict.fromkeys(("experts", "experts_4bit", "experts_fp4"), 0.0)
    kinds[_kind_of_experts(experts.format, serving)] = size
    return Reading(dense, fp4, **kinds)


def least_read(serving: ServingSetup) -> float:
    """Bytes that a node cannot do without in a step, however many requests it serves."""
    return weights_read(serving).total


def draft_read(serving: ServingSetup) -> float:
    """Bytes that a node reads for one pass of drafting: with the model's own MTP head its layer
    and the output layer; of a drafter of its own weights, which are not known here, the output
    layer where it shares that.
    """
    stored = serving.weights
    if not serving.own_head:
        return stored.part(_output(stored)).bytes / serving.tp if serving.drafts_at_once else 0.0
    chosen = stored.experts_share(1) if stored.experts else 0.0
    passed, experts = mtp_layer(serving)
    return (passed + experts * chosen + stored.part(_output(stored)).bytes) / serving.tp


def mtp_layer(serving: ServingSetup) -> tuple[float, float]:
    """Bytes of one MTP layer: what every token passes, and all of its experts.

    It has full attention, no recurrent state, and the feed-forward block of most of the model's
    layers (`deepseek_mtp.py`, `qwen3_next_mtp.py`, `nemotron_h_mtp.py`).
    """
    geometry, stored = serving.geometry, serving.weights
    mixers = sum(part.layers for part in geometry.attention)
    mixers += geometry.latent.layers if geometry.latent else 0
    sparse = geometry.experts.layers if geometry.experts else 0
    dense = 0 if geometry.dense_first else geometry.dense_layers
    kinds: dict[Part, int] = {
        "attention": mixers, "mlp": dense, "shared": sparse, "router": sparse, "experts": sparse,
        "norms": geometry.layers,
    }  # fmt: skip
    size = {n: _unquantized(stored.part(n)) / count if count else 0.0 for n, count in kinds.items()}
    experts = size.pop("experts")
    return sum(size.values()), experts


def _kind_of_experts(form: str, serving: ServingSetup) -> str:
    if form == "nvfp4" and not serving.unpacks(form):
        return "experts_fp4"
    return "experts_4bit" if form in FOUR_BITS else "experts"


def _unquantized(part: StoredPart) -> float:
    """Bytes of a part as MTP layers have it: builds in 4 bits leave them in BF16 (source:
    avarok-steps, model-optimizer-2302)."""
    return BYTES["bf16"] * part.parameters if part.format in FOUR_BITS else part.bytes


def _output(stored: StoredWeights) -> Part:
    return "embedding" if stored.tied else "output"


def _as_served(part: StoredPart, serving: ServingSetup) -> StoredPart:
    """Return a part in the format that flags of the launch make of it."""
    words = [word for word in serving.mxfp4_layers if MXFP4_LAYERS.get(word) == part.name]
    if not words or part.format != "bf16":
        return part
    return StoredPart(part.name, part.parameters, part.parameters * BYTES["mxfp4"], format="mxfp4")


def _experts(stored: StoredWeights, size: float, serving: ServingSetup, tokens: float) -> float:
    """Bytes of experts that the busiest node reads.

    With expert parallelism an expert is on one node, and the nodes wait for that with most of the
    chosen ones: of n spread over two the fuller half has n/2 + sqrt(n / (2 pi)) on average.
    """
    if not size or not stored.experts:
        return 0.0
    share = stored.experts_share(tokens)
    uneven = 1.0
    if serving.expert_parallel and serving.tp > 1:
        chosen = max(1.0, share * stored.experts)
        uneven += math.sqrt(2 * (serving.tp - 1) / (math.pi * chosen))
    return min(size * share, size * share * uneven / serving.tp)
