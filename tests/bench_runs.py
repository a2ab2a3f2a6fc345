"""Records of runs, as tests need them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_cluster.bench import generators
from spark_cluster.bench.expansion import Expansion
from spark_cluster.bench.record import (
    CellKey,
    CellResult,
    Metric,
    MetricName,
    NodeRecord,
    QuestionResult,
    Record,
    Setup,
    Tool,
)
from spark_cluster.bench.steps import BenchRun
from spark_cluster.bench.suite import Suite, canonical

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


def suite_of(**changed: Any) -> Suite:
    """A suite of one recipe."""
    return Suite.model_validate({"name": "s", "recipes": ["r"], **changed})


def begun(
    suite: Suite, folder: Path, expansion: Expansion, setups: Sequence[Setup] = ()
) -> BenchRun:
    """A run of a suite of llama-benchy that has no results yet."""
    new = Record(
        id="20261122-1", suite=suite.name, suite_text=canonical(suite), spark_cluster="0",
        started=datetime(2026, 11, 22, tzinfo=UTC), status="running",
        tool=generators.of(suite).tool(suite), setups=tuple(setups), cells=(), recipes=("r",),
    )  # fmt: skip
    return BenchRun(new, suite, expansion, folder)


def served(rate: float | None = 2.0, **changed: Any) -> CellResult:
    """A cell of `vllm bench serve`: an open loop, or a closed one without a rate."""
    load = key(concurrency=0 if rate else 4, request_rate=rate)
    percentiles = {"p5": 30.0, "p50": 41.0, "p90": 62.0, "p95": 77.0, "p99": 98.0}
    metrics: dict[MetricName, Metric] = {
        "ttft_ms": Metric(mean=45.0, values=(44.0, 46.0), percentiles=percentiles),
        "itl_ms": Metric(mean=12.5, values=(12.0, 13.0), percentiles={"p50": 12.0, "p99": 19.0}),
        "request_throughput": Metric(mean=1.9, values=(1.9, 1.9)),
        "goodput": Metric(mean=1.25, values=(1.2, 1.3)),
        "output_tps": Metric(mean=240.0, values=(239.0, 241.0)),
    }
    about: dict[str, Any] = {"id": f"s.rate{rate}", "metrics": metrics, "status": "ok"}
    return CellResult(setup="s", key=load, runs=2, **{**about, **changed})


def answered(*right: float, kind: str = "tool_call", **changed: Any) -> CellResult:
    """A cell of questions with a score for each run, and two questions."""
    questions = (
        QuestionResult(question="one", streamed=False, right=2, asked=2, answer_ms=810.0),
        QuestionResult(question="two-at-once", streamed=True, right=1, asked=2, answer_ms=1620.0,
                       ttft_ms=210.0, wrong='no tool was called; it says "[sun](x)"'),
    )  # fmt: skip
    scores = right or (1.0, 0.5)
    metrics: dict[MetricName, Metric] = {
        "score": Metric(mean=sum(scores) / len(scores), values=scores),
        "answer_ms": Metric(mean=1215.0, values=(1215.0,) * len(scores)),
    }
    about: dict[str, Any] = {"questions": questions, "metrics": metrics, "status": "ok"}
    load = CellKey(prompt=0, output=0, kind=kind)  # type: ignore[arg-type]
    return CellResult(id=f"s.{kind}", setup="s", key=load, runs=2, **{**about, **changed})
