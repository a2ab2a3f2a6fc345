"""Pipeline parallelism: what the node with the largest stage of layers holds.

vLLM gives each stage as many layers as the next, a remainder to some (`get_pp_indices` in
vllm/distributed/utils.py); the first stage has the embedding, the last one the output layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

from spark_cluster.errors import UsageError
from spark_cluster.models import Geometry
from spark_cluster.models.memory import GIB

EMBEDDING_BYTES = 2
"""Bytes of an element of the embedding, which quantized checkpoints leave in BF16."""


def stage(geometry: Geometry, pp: int) -> Geometry:
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


def share(geometry: Geometry, pp: int, whole_gib: float) -> float:
    """Return the weights of the largest stage, GiB, of all of a model's."""
    if pp == 1:
        return whole_gib
    embedding = geometry.vocab * geometry.hidden * EMBEDDING_BYTES / GIB
    ends = embedding if geometry.tied else 2 * embedding
    layers = max(0.0, whole_gib - ends) * math.ceil(geometry.layers / pp) / geometry.layers
    return layers + min(embedding, whole_gib)
