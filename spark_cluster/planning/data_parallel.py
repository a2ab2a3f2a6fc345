"""vLLM's data parallel mode: what each rank holds, and what its figures mean.

Every rank holds the whole model but the experts, and a KV cache of its own.
"""

from __future__ import annotations

from spark_cluster.config.launch import Launch
from spark_cluster.models import Geometry
from spark_cluster.planning.speed.serving import Serving


def held(launch: Launch, serving: Serving) -> float:
    """Return the share of a model's weights that each rank holds, 0 to 1.

    All but the experts, which vLLM divides among the ranks: whole ones with expert parallelism,
    pieces of each without (docs.vllm.ai, "Data Parallel Deployment").
    """
    if launch.dp == 1 or not serving.geometry.is_moe:
        return 1.0
    return 1 - serving.weights.experts_fraction * (1 - 1 / launch.dp)


def remark(launch: Launch, geometry: Geometry) -> str:
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
