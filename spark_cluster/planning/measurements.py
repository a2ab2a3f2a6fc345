"""Speeds that others measured on DGX Sparks, each with its source (`planning/data`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Metric = Literal["decode_tok_s", "decode_total_tok_s", "ttfr_ms"]


@dataclass(frozen=True)
class Source:
    """Where a measurement was published.

    Attributes:
        link: empty where only the title is known.
    """

    key: str
    title: str
    link: str


@dataclass(frozen=True)
class MeasuredPoint:
    """A figure of a run.

    Attributes:
        low, high: equal, except where the source gives a range; in the unit of the metric.
        context: tokens in the cache of a request in the middle of its answer.
        prompt: tokens of the prompt (`ttfr_ms`).
        users: requests at a time.
        accepted_share: of all drafted tokens; None without a drafter, or where it is not said.
    """

    metric: Metric
    low: float
    high: float
    context: int = 0
    prompt: int = 0
    users: int = 1
    accepted_share: float | None = None

    @property
    def value(self) -> float:
        """The figure, or the middle of its range."""
        return (self.low + self.high) / 2

    @property
    def each(self) -> tuple[float, float]:
        """Lowest and highest tokens/s of one request."""
        share = self.users if self.metric == "decode_total_tok_s" else 1
        return self.low / share, self.high / share


@dataclass(frozen=True)
class MeasuredRun:
    """A server that others measured.

    Attributes:
        model: repository on the hub; `shape`: the model whose shape it has.
        engine, version: as the source says it.
        transport: `rdma` or `socket`, between several nodes.
        drafted: tokens drafted in a step; 0 without a drafter. own_head: by the model's own MTP
            layers.
        batched_tokens: --max-num-batched-tokens, where it is said.
        unpacked: its kernels unpack quantized weights (Marlin).
        held_out: never fitted to.
        excluded: why it is neither compared with predictions nor shown; empty when it is.
        no_shape: the model's shape is not at hand, so that it is shown and not compared.
    """

    id: str
    model: str
    shape: str
    quantization: str
    kv_dtype: str
    engine: str
    version: str
    tp: int
    transport: str
    drafted: int
    own_head: bool
    batched_tokens: int
    unpacked: bool
    mxfp4_layers: tuple[str, ...]
    expert_parallel: bool
    eager: bool
    held_out: bool
    excluded: str
    no_shape: bool
    note: str
    source: Source
    points: tuple[MeasuredPoint, ...]


@cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    """Return all runs, in the order of the file."""
    folder = resources.files("spark_cluster.planning") / "data"
    data: dict[str, Any] = json.loads((folder / "measurements.json").read_text(encoding="utf-8"))
    sources = {key: Source(key, row["title"], row["link"]) for key, row in data["sources"].items()}
    return tuple(_run(row, sources) for row in data["runs"])


def _run(row: dict[str, Any], sources: dict[str, Source]) -> MeasuredRun:
    layers = str(row.get("mxfp4_layers", ""))
    return MeasuredRun(
        id=row["id"],
        model=row["model"],
        shape=row.get("shape", row["model"]),
        quantization=row["quantization"],
        kv_dtype=row["kv_dtype"],
        engine=row["engine"],
        version=row.get("version", ""),
        tp=row["tp"],
        transport=row.get("transport", ""),
        drafted=row.get("drafted", 0),
        own_head=row.get("own_head", False),
        batched_tokens=row.get("batched_tokens", 0),
        unpacked=row.get("kernels") == "marlin",
        mxfp4_layers=tuple(layers.split(",")) if layers else (),
        expert_parallel=row.get("expert_parallel", False),
        eager=row.get("eager", False),
        held_out=row.get("held_out", False),
        excluded=row.get("excluded", ""),
        no_shape=row.get("no_shape", False),
        note=row.get("note", ""),
        source=sources[row["source"]],
        points=tuple(_point(point) for point in row["points"]),
    )


def _point(row: dict[str, Any]) -> MeasuredPoint:
    value = row["value"]
    low, high = value if isinstance(value, list) else (value, value)
    rest = {name: row[name] for name in ("context", "prompt", "users") if name in row}
    return MeasuredPoint(row["metric"], low, high, **rest, accepted_share=row.get("accepted_share"))
