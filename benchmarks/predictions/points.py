"""The measurements as points that a prediction can be compared with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

from spark_cluster.config.recipe_schema import Quantization
from spark_cluster.errors import UsageError
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import find
from spark_cluster.models.shape import Geometry
from spark_cluster.plan.evidence import MeasuredPoint, MeasuredRun, measured_runs
from spark_cluster.plan.serving import BATCHED_TOKENS, ServingSetup

SHAPES = Path(__file__).parent / "shapes.json"

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt-llm": "sglang"}
"""TensorRT-LLM is no engine of this project; its range is that of another engine."""


@dataclass(frozen=True)
class Measured:
    """A measurement with what was served.

    Attributes:
        situation: decode, users, tp, tp users, drafter, drafted (with a drafter whose acceptance is
            not said) or prefill.
        family: of models alike in their layers, whose runs are left out together.
        value: tokens/s of one request, or ms to the first response.
    """

    run: MeasuredRun
    point: MeasuredPoint
    serving: ServingSetup
    situation: str
    family: str
    value: float

    @property
    def seconds(self) -> float:
        """The time that was measured: of a step, or to the first response."""
        if self.situation == "prefill":
            return self.value / 1e3
        share = self.point.accepted_share or 0.0
        return (1 + self.run.drafted * share) / self.value


def measured() -> list[Measured]:
    """Return every point that can be compared."""
    return list(_measured())


def _measured() -> Iterator[Measured]:
    for run in measured_runs():
        if run.excluded or run.no_shape:
            continue
        serving = serving_of(run)
        for point in run.points:
            situation = _situation(run, point)
            value = point.value
            if point.metric == "decode_total_tok_s":
                value /= point.users
            yield Measured(run, point, serving, situation, family(serving.geometry), value)


def serving_of(run: MeasuredRun) -> ServingSetup:
    """Return what a run served.

    Raises:
        UsageError: its model's shape is not at hand.
    """
    return ServingSetup(
        geometry_of(run.shape, run.model),
        cast(Quantization, run.quantization),
        run.kv_dtype,
        run.tp,
        eager=run.eager,
        engine=ENGINES[run.engine],
        mxfp4_layers=run.mxfp4_layers,
        expert_parallel=run.expert_parallel,
        unpacked=run.unpacked,
        batched_tokens=run.batched_tokens or BATCHED_TOKENS,
        sockets=run.transport == "socket",
        own_head=run.own_head,
        drafts_at_once=run.drafts_at_once,
    )


def geometry_of(shape: str, name: str) -> Geometry:
    """Return the shape of a model under the name of its build, whatever this machine has of it."""
    config = _shapes().get(shape)
    if config is not None:
        return from_config(config, name)
    try:
        return replace(find(name, cache_dir=SHAPES.parent, base=shape), name=name)
    except UsageError:
        return replace(find(shape, cache_dir=SHAPES.parent), name=name)


@cache
def _shapes() -> dict[str, dict[str, object]]:
    rows = json.loads(SHAPES.read_text(encoding="utf-8"))["models"]
    return {row["name"]: row["config"] for row in rows}


def _situation(run: MeasuredRun, point: MeasuredPoint) -> str:
    if point.metric == "ttfr_ms":
        return "prefill"
    if run.drafted:
        return "drafted" if point.accepted_share is None else "drafter"
    if run.tp > 1:
        return "tp users" if point.users > 1 else "tp"
    return "users" if point.users > 1 else "decode"


def family(geometry: Geometry) -> str:
    """Name the family of a model: what is left out together."""
    kind = geometry.model_type.removesuffix("_text").removesuffix("_moe")
    return "gemma4" if kind.startswith("gemma4") else kind
