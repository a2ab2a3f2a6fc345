"""The resources of a node, and what a model takes of them.

Its memory and disk and who holds what of it; what a batch adds; the share of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from packaging.version import Version
from pydantic import Field

from spark_cluster.config.facts import Facts, GpuProcess, Memory
from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import json_object
from spark_cluster.config.schema import Document, Hidden, Rounded, printed
from spark_cluster.errors import UsageError
from spark_cluster.models.memory_share import GIB, GIB_KIB
from spark_cluster.models.naming import has_trait
from spark_cluster.models.shape import Geometry
from spark_cluster.models.weights import drafter_bytes
from spark_cluster.plan.kv_layout import is_mtp
from spark_cluster.plan.kv_rules import vllm_version
from spark_cluster.plan.serving import BATCHED_TOKENS, ServingSetup, mtp_layer

SPARK = Memory(total_kib=127_600_748, available_kib=123_731_900)
"""A Spark after boot without a desktop (current firmware): 121.69 GiB, 118 of them available."""


@dataclass(frozen=True)
class NodeMemory(Document):
    """The memory of one node.

    Attributes:
        memory: what is for programs on the GPU: the GPU's own, or as on a Spark the machine's.
        held: processes that hold GPU memory now.
        disk_free_gib: of the root file system; None when it is not known.
        has_model: the model's files are there already.
        assumed: no node was asked.
        gpu: its name; empty when it is not known.
    """

    name: str
    memory: Hidden[Memory] = SPARK
    held: Annotated[tuple[GpuProcess, ...], Field(serialization_alias="held_by")] = ()
    disk_free_gib: Hidden[float | None] = None
    has_model: Hidden[bool] = False
    assumed: bool = False
    gpu: Hidden[str] = ""

    @printed
    def total_gib(self) -> Annotated[float, Rounded(2)]:
        return self.memory.total_kib / GIB_KIB

    @printed
    def available_gib(self) -> Annotated[float, Rounded(2)]:
        return self.memory.available_kib / GIB_KIB

    @printed
    def held_gib(self) -> Annotated[float, Rounded(2)]:
        """The GPU memory that processes hold."""
        return sum(p.used_mib or 0 for p in self.held) / 1024


def assumed(count: int, available_gib: float | None = None) -> list[NodeMemory]:
    """Return assumed Sparks: idle, without a desktop, unless the available memory is given."""
    memory = SPARK
    if available_gib is not None:
        memory = Memory(SPARK.total_kib, round(available_gib * GIB_KIB))
    return [NodeMemory(f"spark{n}", memory, assumed=True) for n in range(1, count + 1)]


def of_facts(name: str, facts: Facts, held: Iterable[GpuProcess], *, has_model: bool) -> NodeMemory:
    """A node that was asked."""
    return NodeMemory(
        name,
        facts.gpu_memory,
        tuple(held),
        facts.disk_free_bytes / GIB if facts.disk_free_bytes else None,
        has_model,
        gpu=facts.gpu.name if facts.gpu else "",
    )


LARGE_GPUS = ((160.0, 16_384), (70.0, 8192))
"""GiB of a GPU's own memory, and the default from there on (source: vllm-source)."""

NEVER_LARGE = "A100"
"""GPUs of this name have the small default whatever their memory is."""

RUNTIME_GIB_PER_TOKEN = 0.6 / (65536 - 2048)
"""What a runtime that own starts logged grows by with each token of a batch above 2,048."""

OWN_RUNTIME_GIB_PER_TOKEN = 1.1 / (8192 - 2048)
"""The same as RUNTIME_GIB_PER_TOKEN on a GPU with memory of its own: 1.6 and 1.8 GiB in all at
8,192, gpt-oss 2.8 and 3.6 (source: measured-on-h200)."""

SEQUENCES, LARGE_SEQUENCES = 256, 1024
"""Defaults of --max-num-seqs on small and large GPUs (source: vllm-source)."""

MOST_ITEMS = 999
"""Images or videos of a request where no limit is given (vLLM: `config/multimodal.py`)."""
SPARK_LARGE = Version("0.33")
"""From here on a Spark has the defaults of a large GPU: 8,192 tokens and 1,024 sequences
(`platforms/cuda.py`, get_device_total_memory; not yet in 0.32)."""


def batched_tokens(launch: Launch) -> int:
    """--max-num-batched-tokens, or the default."""
    return int(launch.number("max-num-batched-tokens") or BATCHED_TOKENS)


def with_default_batch(launch: Launch, rooms: Sequence[NodeMemory]) -> Launch:
    """Return the launch with the batch that vLLM takes on these GPUs where it is told none."""
    if launch.number("max-num-batched-tokens"):
        return launch
    tokens = _large_batch(launch, rooms)
    return launch.with_flags({"max-num-batched-tokens": tokens}) if tokens else launch


def sequences(launch: Launch, rooms: Sequence[NodeMemory]) -> int:
    """--max-num-seqs, or the default on these GPUs (`get_batch_defaults`)."""
    given = launch.number("max-num-seqs")
    if given is not None:
        return int(given)
    return LARGE_SEQUENCES if _large_batch(launch, rooms) else SEQUENCES


def _large_batch(launch: Launch, rooms: Sequence[NodeMemory]) -> int | None:
    """The default batch of a large GPU; None where vLLM takes the small one.

    Before 0.33 it asks NVML for the size of a GPU, which a Spark does not answer: small defaults.
    """
    if not rooms or any(NEVER_LARGE in room.gpu for room in rooms):
        return None
    if not has_own_memory(rooms) and vllm_version(launch.vllm) < SPARK_LARGE:
        return None
    least = min(room.total_gib for room in rooms)
    return next((tokens for gib, tokens in LARGE_GPUS if least >= gib), None)


def text_only(launch: Launch) -> bool:
    """Return whether the launch leaves a model's vision tower out."""
    if launch.args.get("language-model-only") is True:
        return True
    limits = json_object(launch.args.get("limit-mm-per-prompt"))
    return not any(allowed_items(launch, kind) for kind in ("image", *limits))


def allowed_items(launch: Launch, kind: str) -> int:
    """Return how many images or videos a request may have: --limit-mm-per-prompt.

    A limit is a number, or an object with a `count` (`config/multimodal.py`).
    """
    limit = json_object(launch.args.get("limit-mm-per-prompt")).get(kind)
    limit = limit.get("count") if isinstance(limit, dict) else limit
    return limit if type(limit) is int and limit >= 0 else MOST_ITEMS


def has_own_memory(rooms: Sequence[NodeMemory]) -> bool:
    """Return whether the GPUs of nodes have memory of their own."""
    return bool(rooms) and all(room.memory.of_gpu for room in rooms)


def for_batch_gib(tokens: int, *, own: bool = False) -> float:
    """Return what a batch of so many tokens adds to the runtime at 2,048.

    Args:
        own: the GPU has memory of its own.
    """
    each = OWN_RUNTIME_GIB_PER_TOKEN if own else RUNTIME_GIB_PER_TOKEN
    return each * max(0, tokens - 2048)


# The weights of a whole model and its drafter, and the share of them that each node holds.
#
# Pipeline parallelism: vLLM gives each stage as many layers as the next, a remainder to some
# (`get_pp_indices` in vllm/distributed/utils.py); the first stage has the embedding, the last one
# the output layer. Data parallelism: every rank holds the whole model but the experts, and a KV
# cache of its own.

EMBEDDING_BYTES = 2
"""Bytes of an element of the embedding, which quantized checkpoints leave in BF16."""

MXFP4_PADDING, WHOLE_TILE = 1.016, 128
"""Kernels round MXFP4 experts of odd widths and their scales up (`oracle/mxfp4.py`): gpt-oss-20b on
one H100 (source: measured-kv-unseen; 3.5 % for the 120B at TP=2). Not known on a Spark, whose
kernels are others."""


def whole_gib(launch: Launch, serving: ServingSetup, *, own: bool = False) -> float:
    """Return the weights of the whole model and its drafter, GiB: of the tensors where they are
    known and lie in the format that is served, else as a server logged it, else computed; with the
    tables of positions of every rank, without a vision tower that is not loaded.

    Args:
        own: for GPUs with memory of their own, whose kernels pad MXFP4.

    Raises:
        UsageError: nothing says it.
    """
    geometry = serving.geometry
    more = launch.tp * launch.pp * geometry.tables_bytes / GIB
    drafter = drafter_bytes(geometry.drafter) / GIB
    mtp = is_mtp(launch.speculative, launch.model)
    if geometry.stored is not None and serving.weights.counted:
        size = serving.weights.memory_bytes(drafter=mtp)
    elif launch.weights_gib:
        return launch.weights_gib + drafter
    else:
        size = serving.weights.memory_bytes() + (_mtp_bytes(serving) if mtp else 0.0)
    if text_only(launch):
        size -= tower_bytes(serving)
    size += _held_more_bytes(serving)
    if own and serving.quantization == "mxfp4" and geometry.hidden % WHOLE_TILE:
        size *= MXFP4_PADDING
    return size / GIB + more + drafter


def tower_bytes(serving: ServingSetup) -> float:
    """Return the bytes of the vision and audio towers."""
    geometry, other = serving.geometry, serving.weights.part("other")
    return other.bytes * geometry.tower_parameters / max(1, geometry.other_parameters)


def _held_more_bytes(serving: ServingSetup) -> float:
    """Bytes that vLLM holds in addition to the weights of a checkpoint.

    Latent attention keeps `kv_b_proj` in 16 bits too where it is quantized (`mla_attention.py`,
    `process_weights_after_loading`). Quantization to FP8 while loading makes a gate for experts
    that have none (`online/moe_base.py`, `w13_weight`). Both by vLLM's source of 0.26 and measured
    there (measured-kv-unseen-2).
    """
    geometry, weights, latent = serving.geometry, serving.weights, serving.geometry.latent
    more = 0.0
    if latent and not latent.output_rank and weights.part("attention").format != "bf16":
        of_a_head = latent.rank * (latent.nope_dim + latent.value_dim)
        more += 2 * latent.layers * latent.q_heads * of_a_head
    if serving.quantization == "fp8-online" and has_trait(geometry.model_type, "ungated_mlp"):
        more += weights.part("experts").bytes / 2
    return more


def _mtp_bytes(serving: ServingSetup) -> float:
    """Bytes of MTP layers, each with the matrix that joins the embedding with the hidden state
    (`mimo_mtp.py`, `glm4_moe_lite_mtp.py`); one, as in vLLM, where the config tells no number."""
    geometry = serving.geometry
    joined = 2 * geometry.hidden**2 * EMBEDDING_BYTES
    return (geometry.mtp_layers or 1) * (sum(mtp_layer(serving)) + joined)


def largest_stage(geometry: Geometry, pp: int) -> Geometry:
    """Return the shape of the largest stage: of each kind of layers its share, rounded up.

    Raises:
        UsageError: there are more stages than layers.
    """
    if pp == 1:
        return geometry
    if pp > geometry.layers:
        raise UsageError(
            f"the {geometry.layers} layers of {geometry.name} cannot be split into {pp} stages",
            hint="lower pipeline_parallel (--pipeline-parallel-size)",
        )
    latent = geometry.latent
    return replace(
        geometry,
        layers=math.ceil(geometry.layers / pp),
        attention=tuple(
            replace(part, layers=math.ceil(part.layers / pp), borrowed=part.borrowed // pp)
            for part in geometry.attention
        ),
        latent=replace(latent, layers=math.ceil(latent.layers / pp)) if latent else None,
        recurrent=tuple(
            replace(part, layers=math.ceil(part.layers / pp)) for part in geometry.recurrent
        ),
    )


def stage_gib(geometry: Geometry, pp: int, whole_gib: float) -> float:
    """Return the weights of the largest stage, GiB, of all of a model's."""
    if pp == 1:
        return whole_gib
    embedding = geometry.vocab * geometry.hidden * EMBEDDING_BYTES / GIB
    ends = embedding if geometry.tied else 2 * embedding
    layers = max(0.0, whole_gib - ends) * math.ceil(geometry.layers / pp) / geometry.layers
    return layers + min(embedding, whole_gib)


def rank_share(launch: Launch, serving: ServingSetup) -> float:
    """Return the share of a model's weights that each rank holds, 0 to 1.

    All but the experts, which vLLM divides among the ranks: whole ones with expert parallelism,
    pieces of each without (docs.vllm.ai, "Data Parallel Deployment").
    """
    if launch.dp == 1 or not serving.geometry.is_moe:
        return 1.0
    return 1 - serving.weights.experts_fraction * (1 - 1 / launch.dp)


def ranks_remark(launch: Launch, geometry: Geometry) -> str:
    """Say what the figures of several ranks mean: none was measured on Sparks."""
    what = (
        f"{launch.dp} data-parallel ranks: the figures are those of one of them; together they "
        f"serve 1 to {launch.dp} times its tokens/s, which was not measured on Sparks"
    )
    if not geometry.is_moe:
        return f"{what}. Ranks of a dense model share nothing: `up --replicas` does without Ray"
    whole = launch.args.get("enable-expert-parallel") is True
    how = "whole ones, --enable-expert-parallel" if whole else "a piece of each"
    return (
        f"{what}. The experts are divided among the ranks ({how}), so that each step waits for all "
        "of them over the link"
    )
