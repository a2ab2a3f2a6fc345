"""Runs of CUDA vLLM 0.26.0 and 0.33.0 on one and two NVIDIA H200, 2026-11-21: `data/gpu/runs.json`.

Real shapes with dummy weights, and the lab's trained model ("paris"); what vLLM logged of memory
while it started. H200 memory is not unified, so nothing here shows how a Spark's memory behaves.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.models.config import from_config
from spark_cluster.models.shape import Geometry

DATA = Path(__file__).parent / "data" / "gpu"


@dataclass(frozen=True)
class GpuRun:
    """A start of vLLM, with what it printed.

    Attributes:
        quantization: of the weights in memory.
        kv_gib: of the cache, GiB, as printed.
        kv_exact: it was asked for in bytes; else `kv_gib` is rounded to two decimals.
        tokens, concurrency: as printed.
        lines: of its log; empty where only the figures were kept.
    """

    name: str
    vllm: str
    geometry: Geometry
    quantization: str
    options: dict[str, Any]
    max_model_len: int
    kv_gib: float
    kv_exact: bool
    tokens: int
    concurrency: float
    lines: list[str]

    @property
    def tp(self) -> int:
        return int(self.options["tp"])

    @property
    def log(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def runs() -> list[GpuRun]:
    """Return all 24."""
    document = json.loads((DATA / "runs.json").read_text())
    models = {name: from_config(config, name) for name, config in document["models"].items()}
    return [_run(row, models[row["model"]]) for row in document["runs"]]


def _run(row: dict[str, Any], geometry: Geometry) -> GpuRun:
    asked = ("tp", "kv_dtype", "max_num_batched_tokens", "prefix_caching", "vllm")
    options = {key: row[key] for key in asked if key in row}
    same = {key: row[key] for key in ("vllm", "quantization", "max_model_len", "lines")}
    name = f"{row['vllm']} {row['name']}"
    return GpuRun(name=name, geometry=geometry, options=options, **same, **row["printed"])
