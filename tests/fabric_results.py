"""Results of `bench fabric`, as tests need them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_cluster.bench.fabric_run import FILE, FabricNode, FabricRecord, all_reduce
from spark_cluster.bench.record import save_document

CHUNK = 2048 * 10752

RDMA = (
    "spark1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; "
    "OOB enp1s0f1np1:192.168.177.11<0>",
    "spark1:1:1 [0] NCCL INFO Using network IB",
)


def node(name: str, log: Sequence[str] = RDMA, **changed: Any) -> FabricNode:
    """A Spark and its memory."""
    usual = {"mtu": 9000, "hcas": ("rocep1s0f1", "roceP2p1s0f1"), "copy_gb_s": 226.0}
    return FabricNode(
        **{"name": name, "device": "GB10", "triad_gb_s": 231.0, "nccl_log": tuple(log), **usual,
           **changed}
    )  # fmt: skip


def told(**changed: Any) -> dict[str, Any]:
    """The result that the job prints."""
    rates = {"bytes": 1, "copy": [2e11, 2.2e11, 2.1e11], "triad": [2.3e11]}
    one = {"device": "NVIDIA GB10", "memory": rates, "log": list(RDMA)}
    rows = [{"bytes": 10752, "seconds": [4e-5, 5e-5, 6e-5]}, {"bytes": 8, "seconds": [3e-5]}]
    whole = {"backend": "nccl", "torch": "2.11", "nccl": "2.28.9", "ray": "2.60.0",
             "nodes": [one, one], "allreduce": rows, "left_out": [1024]}  # fmt: skip
    return {**whole, **changed}


def measured(
    chunk_gb_s: float = 23.1,
    token_us: Sequence[float] = (41.0,) * 5,
    count: int = 2,
    **changed: Any,
) -> FabricRecord:
    """A result of two Sparks, or of another count.

    Args:
        chunk_gb_s: bus bandwidth of the prefill chunk.
        token_us: repetitions of one token.
    """
    chunk_s = CHUNK * 2 * (count - 1) / count / chunk_gb_s / 1e9
    rows = (
        all_reduce(10752, tuple(value / 1e6 for value in token_us), count, "one token"),
        all_reduce(CHUNK, (chunk_s,) * 5, count, "prefill chunk"),
    )
    usual: dict[str, Any] = {
        "id": "r1",
        "spark_cluster": "0.4.0",
        "measured": datetime(2026, 11, 22, tzinfo=UTC),
        "recipe": "gemma4-31b-fp8",
        "model": "google/gemma-4-31B-it",
        "image": "x",
        "backend": "nccl",
        "nodes": tuple(node(f"spark{number + 1}") for number in range(count)),
        "allreduce": rows,
    }
    return FabricRecord(**{**usual, **changed})


def save(folder: Path, *, token_s: float = 40e-6, **changed: Any) -> str:
    """Write a result of two Sparks; return its folder."""
    token_us = tuple(1e6 * token_s * share for share in (1, 0.9, 1.2))
    save_document(measured(22.0, token_us, **changed), folder / FILE)
    return str(folder)
