"""The weights that a node reads in a step, by the kernels that read them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_cluster.models.stored_tensors import EVERY_TOKEN, Part, StoredPart, StoredWeights
from spark_cluster.models.weights import BYTES
from spark_cluster.planning.speed.serving import Serving

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
        experts_4bit: the same in 4 bits.
    """

    dense: float
    dense_fp4: float
    experts: float
    experts_4bit: float

    @property
    def total(self) -> float:
        """All bytes."""
        return self.dense + self.dense_fp4 + self.experts + self.experts_4bit


def weights_read(serving: Serving, tokens: float = 1, sharing: float = 1.0) -> Reading:
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
        if part.format in FP4:
            fp4 += size
        else:
            dense += size
    experts = stored.part("experts")
    size = _experts(stored, experts.bytes, serving, tokens**sharing)
    few_bits = experts.format in FOUR_BITS
    return Reading(dense, fp4, 0.0 if few_bits else size, size if few_bits else 0.0)


def least_read(serving: Serving) -> float:
    """Bytes that a node cannot do without in a step, however many requests it serves."""
    return weights_read(serving).total


def draft_read(serving: Serving) -> float:
    """Bytes that a node reads for one drafted token with the model's own MTP head: one more layer
    of the usual kind, and the output layer. 0 with a drafter of its own weights, which are not
    known here.
    """
    if not serving.own_head:
        return 0.0
    stored, layers = serving.weights, serving.geometry.layers
    chosen = stored.experts_share(1) if stored.experts else 0.0
    layer = sum(stored.part(name).bytes for name in EVERY_TOKEN)
    layer += stored.part("experts").bytes * chosen
    return (layer / layers + stored.part(_output(stored)).bytes) / serving.tp


def _output(stored: StoredWeights) -> Part:
    return "embedding" if stored.tied else "output"


def _as_served(part: StoredPart, serving: Serving) -> StoredPart:
    """Return a part in the format that flags of the launch make of it."""
    words = [word for word in serving.mxfp4_layers if MXFP4_LAYERS.get(word) == part.name]
    if not words or part.format != "bf16":
        return part
    return StoredPart(part.name, part.parameters, part.parameters * BYTES["mxfp4"], format="mxfp4")


def _experts(stored: StoredWeights, size: float, serving: Serving, tokens: float) -> float:
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
