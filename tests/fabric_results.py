"""Results of `bench fabric`, as tests need them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_cluster.bench.fabric_record import FabricNode, FabricRecord, all_reduce, save_fabric

CHUNK = 2048 * 10752


def save(
    folder: Path, *, token_s: float = 40e-6, chunk_s: float = CHUNK / 22e9, **more: Any
) -> str:
    """Write a result of two Sparks; return its folder."""
    nodes = [FabricNode(name=n, device="GB10", copy_gb_s=220, triad_gb_s=225) for n in "ab"]
    rows = [
        all_reduce(10752, (token_s, token_s * 0.9, token_s * 1.2), 2, "one token"),
        all_reduce(CHUNK, (CHUNK / 22e9,), 2, "prefill chunk"),
    ]
    about: dict[str, Any] = {
        "id": "r",
        "spark_cluster": "0.4.0",
        "measured": datetime(2026, 11, 22, tzinfo=UTC),
        "recipe": "gemma4-31b-fp8",
        "model": "google/gemma-4-31B-it",
        "image": "x",
        "backend": "nccl",
        "nodes": tuple(nodes),
        "allreduce": tuple(rows),
        **more,
    }
    save_fabric(FabricRecord(**about), folder)
    return str(folder)
