"""The document of `bench fabric`: what the link and the memory of the nodes did, and the verdict.

It is `fabric.json` of a folder; `predict --calibrate` takes the link's figures from it.
"""

from __future__ import annotations

import statistics
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from spark_cluster.bench.record import Part
from spark_cluster.bench.run_folder import printable, read_document
from spark_cluster.planning.speed.allreduce import carried

FORMAT: Final = "spark-cluster.fabric.v1"
FILE = "fabric.json"
Text = Annotated[str, AfterValidator(printable)]
Rate = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
Use = Literal["one token", "prefill chunk", ""]
Verdict = Literal["as expected", "slow", "not judged"]


class AllReduce(Part):
    """All-reduces of one message size.

    Attributes:
        bytes: of the message that each node gives.
        use: what of the model has this size; empty for a size of the sweep.
        latency_us: of one, the median of `values_us`.
        bus_gb_s: 10^9 bytes/s that each node sends: bytes / latency * 2 (n - 1) / n for n nodes
            (source: nccl-tests-performance).
        values_us: of each repetition, the mean of its operations on the slowest node.
    """

    bytes: int = Field(gt=0, lt=1 << 40)
    use: Use = ""
    latency_us: Rate
    bus_gb_s: Rate
    values_us: tuple[Rate, ...] = Field(max_length=1000)


class FabricNode(Part):
    """A node and its memory.

    Attributes:
        device: the GPU as PyTorch names it, or CPU.
        mtu: of the link's interfaces, the smallest.
        hcas: RDMA devices of the link.
        copy_gb_s: of a copy, read and written bytes, 10^9 bytes/s, the median.
        triad_gb_s: of `a = b + 3 c`, the same (source: stream-benchmark).
        nccl_log: lines that say which network NCCL took.
    """

    name: Text
    device: Text
    driver: Text = ""
    kernel: Text = ""
    mtu: int | None = None
    hcas: tuple[Text, ...] = ()
    copy_gb_s: Rate
    triad_gb_s: Rate
    nccl_log: tuple[Text, ...] = Field(default=(), max_length=100)


class FabricIssue(Part):
    """A known issue that can be the cause; `spark-cluster explain --about ID` shows all of it."""

    id: Text
    title: Text
    found: Text
    cause: Text
    fix: Text


class FabricRecord(Part):
    """The results of `bench fabric`.

    Attributes:
        id: of the run that measured it.
        recipe, model, image: of the recipe whose image was used, and whose messages are named.
        backend: `nccl` on GPUs, `gloo` on CPUs.
        left_out: message sizes for which no time was left.
        reasons: for the verdict.
    """

    format: Literal["spark-cluster.fabric.v1"] = FORMAT
    id: Text
    spark_cluster: Text
    measured: datetime
    recipe: Text
    model: Text
    image: Text
    backend: Literal["nccl", "gloo"]
    torch: Text = ""
    nccl: Text = ""
    ray: Text = ""
    nodes: tuple[FabricNode, ...] = Field(min_length=2, max_length=64)
    allreduce: tuple[AllReduce, ...] = Field(min_length=1, max_length=200)
    left_out: tuple[int, ...] = Field(default=(), max_length=200)
    verdict: Verdict = "not judged"
    reasons: tuple[Text, ...] = ()
    issues: tuple[FabricIssue, ...] = ()

    def of_use(self, use: Use) -> AllReduce | None:
        """Return the all-reduce of a size that the model has."""
        return next((row for row in self.allreduce if row.use == use), None)

    @property
    def best_gb_s(self) -> float:
        """The highest bus bandwidth of all sizes, 10^9 bytes/s."""
        return max(row.bus_gb_s for row in self.allreduce)


def all_reduce(size: int, seconds: tuple[float, ...], nodes: int, use: Use = "") -> AllReduce:
    """Return the figures of a message size.

    Args:
        seconds: of one operation, for each repetition; at least one.
    """
    middle = statistics.median(seconds)
    sent = size * carried(nodes)
    return AllReduce(
        bytes=size,
        use=use,
        latency_us=round(middle * 1e6, 3),
        bus_gb_s=float(f"{sent / middle / 1e9:.6g}"),
        values_us=tuple(round(value * 1e6, 3) for value in seconds),
    )


def is_fabric(path: Path) -> bool:
    """Return whether a file, or a folder that has one, is such a document by its name."""
    return path.name == FILE or (path.is_dir() and (path / FILE).is_file())


def load_fabric(path: Path) -> FabricRecord:
    """Read the document from its folder or the file itself; it may be somebody else's.

    Raises:
        UsageError: there is none.
        InvalidFile: it is no such document.
    """
    path = path / FILE if path.is_dir() else path
    hint = "`spark-cluster bench fabric --out FOLDER` writes one"
    return read_document(path, FabricRecord, "a result of `bench fabric`", FORMAT, hint)
