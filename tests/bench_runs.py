"""Records of runs, as tests need them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from spark_cluster.bench.record import (
    CellKey,
    CellResult,
    Metric,
    MetricName,
    NodeRecord,
    Record,
    Setup,
    Tool,
)

TOOL = Tool(name="llama-benchy", version="0.4.0", latency_mode="api")
STEADY = (6.90, 6.91, 6.92, 6.89, 6.93)
SLOWER = tuple(value * 0.8 for value in STEADY)


def key(**changed: Any) -> CellKey:
    """A load; 2048 and 128 tokens unless said otherwise."""
    return CellKey(**{"prompt": 2048, "output": 128, **changed})


def cell(
    setup: str = "s", load: CellKey | None = None, status: str = "ok", **values: Sequence[float]
) -> CellResult:
    """A cell with values for its metrics."""
    load = load or key()
    metrics: dict[MetricName, Metric] = {
        name: Metric(mean=sum(found) / len(found), values=tuple(found))  # type: ignore[misc]
        for name, found in values.items()
    }
    name = f"{setup}.pp{load.prompt}-tg{load.output}-d{load.depth}-c{load.concurrency}"
    reason = "" if status == "ok" else "2 of 5 requests failed: HTTP 500"
    return CellResult(
        id=name, setup=setup, key=load, runs=5, status=status, reason=reason, metrics=metrics
    )


def setup(id: str = "s", **changed: Any) -> Setup:
    """A server of Gemma 4 31B."""
    about: dict[str, Any] = {
        "recipe": "gemma4-31b-fp8",
        "model": "google/gemma-4-31B-it",
        "model_revision": "main",
        "quantization": "fp8-online",
        "kv_cache_dtype": "fp8",
        "tp": 1,
        "nodes": ("spark1",),
        "versions": {"vllm": "0.22.1"},
    }
    return Setup(id=id, **{**about, **changed})


def record(
    *cells: CellResult, id: str = "a", setups: Sequence[Setup] = (), **changed: Any
) -> Record:
    """A run that is complete."""
    about: dict[str, Any] = {
        "suite": "single-user",
        "spark_cluster": "0.2.0",
        "started": datetime(2026, 11, 22, tzinfo=UTC),
        "status": "complete",
        "tool": TOOL,
        "nodes": (NodeRecord(name="spark1", driver="580.95.05"),),
    }
    found = tuple(setups) or (setup(),)
    return Record(id=id, setups=found, cells=cells, **{**about, **changed})
