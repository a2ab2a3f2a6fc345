"""The weights of a whole model and its drafter, and the share of them that each node holds.

Pipeline parallelism: vLLM gives each stage as many layers as the next, a remainder to some
(`get_pp_indices` in vllm/distributed/utils.py); the first stage has the embedding, the last one the
output layer. Data parallelism: every rank holds the whole model but the experts, and a KV cache of
its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from spark_cluster.config.launch import Launch
from spark_cluster.errors import UsageError
from spark_cluster.models.memory_share import GIB
from spark_cluster.models.shape import Geometry
from spark_cluster.models.weights import drafter_bytes
from spark_cluster.plan.kv.layers import is_mtp
from spark_cluster.plan.speed.serving import Serving

EMBEDDING_BYTES = 2
"""Bytes of an element of the embedding, which quantized checkpoints leave in BF16."""


def whole_gib(launch: Launch, serving: Serving) -> float:
    """Return the weights of the whole model and its drafter, GiB: of the tensors where they are
    known and lie in the format that is served, else as a server logged it, else computed; with the
    tables of positions of every rank.

    Raises:
        UsageError: nothing says it.
    """
    geometry = serving.geometry
    more = launch.tp * launch.pp * geometry.tables_bytes / GIB
    drafter = drafter_bytes(geometry.drafter) / GIB
    if geometry.stored is not None and serving.weights.counted:
        mtp = is_mtp(launch.speculative, launch.model)
        return serving.weights.memory_bytes(drafter=mtp) / GIB + more + drafter
    return (launch.weights_gib or serving.weights.memory_bytes() / GIB + more) + drafter


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


def rank_share(launch: Launch, serving: Serving) -> float:
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
