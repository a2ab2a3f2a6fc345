"""The document of `bench fabric`: what the link and the memory of the nodes did, and the verdict:
as expected, or slow, with the known causes.

It is `fabric.json` of a folder; `predict --calibrate` takes the link's figures from it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from spark_cluster.bench.record import Part
from spark_cluster.bench.run_folder import printable, read_document
from spark_cluster.engine.link_check import DEGRADED_GBITS, GOOD_GBITS
from spark_cluster.issues.entries import catalogue, marks_in, recognise
from spark_cluster.plan.speed.constants import (
    MEASURED_NODES,
    Constants,
    carried,
    most_exchanges,
)

FORMAT: Final = "spark-cluster.fabric.v1"
FILE = "fabric.json"
Text = Annotated[str, AfterValidator(printable)]
Rate = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
Use = Literal["one token", "prefill chunk", ""]
Verdict = Literal["as expected", "slow", "not judged"]

EXPECTED_GB_S = (22.0, 24.0)
"""Bus bandwidth of NCCL over both twins, 10^9 bytes/s (source: measured-on-two-sparks)."""

SPARK_GPU = "GB10"
"""In the name of the device for which the figures are expected."""

TWINS = 2
"""Paths of about 100 Gb/s that one cable has."""

ONE_TWIN_GBITS = 112.0
"""The most that one twin carries, Gb/s: 111 with an RDMA MTU of 4096."""

GOOD_GB_S = TWINS * GOOD_GBITS / 8
DEGRADED_GB_S = TWINS * DEGRADED_GBITS / 8
ONE_TWIN_GB_S = ONE_TWIN_GBITS / 8

FULL_MTU = 9000
"""Of the link's interfaces; with a smaller one RDMA runs at an MTU of 1024."""

UNEVEN = 0.15
"""The nodes' memories differ by more than this share only when something is wrong with one."""


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


# -- the verdict -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cause:
    """A known issue that can be the cause, and what was seen of it."""

    issue: str
    found: str


def judged(record: FabricRecord) -> FabricRecord:
    """Return the document with its verdict, reasons and known issues.

    Figures of gloo are of CPUs, and are not judged; nor are those of other GPUs than a Spark's.
    """
    why = _why_not(record)
    if why:
        return record.model_copy(update={"verdict": "not judged", "reasons": (why,)})
    reasons = [*_of_link(record), *_of_memory(record.nodes)]
    # Sockets make it slow whatever the figures are: the next model may have larger messages.
    seen = list(_of_logs(record.nodes))
    if reasons:
        seen += [*_of_nodes(record.nodes), *_by_figures(record, explained=bool(seen))]
    elif seen:
        reasons = [seen[0].found]
    causes = {cause.issue: cause for cause in reversed(seen)}
    verdict: Verdict = "slow" if reasons else "as expected"
    names = ",".join(node.name for node in record.nodes)
    issues = tuple(_issue(cause, names) for cause in reversed(causes.values()))
    return record.model_copy(
        update={"verdict": verdict, "reasons": tuple(reasons), "issues": issues}
    )


def _why_not(record: FabricRecord) -> str:
    """Return why nothing is expected of such nodes; empty where they are Sparks."""
    if record.backend != "nccl":
        return "gloo on CPUs: nothing of it is what GPUs and RDMA do"
    others = sorted({node.device for node in record.nodes if SPARK_GPU not in node.device})
    return f"{', '.join(others)}: what to expect is known of Sparks only" if others else ""


def _issue(cause: Cause, nodes: str) -> FabricIssue:
    known = catalogue()[cause.issue]
    return FabricIssue(
        id=known.id,
        title=known.title,
        found=cause.found,
        cause=known.cause,
        fix=known.fix_on(nodes),
    )


def _of_link(record: FabricRecord) -> Iterator[str]:
    """Yield why the link is slow."""
    low, high = EXPECTED_GB_S
    best = record.best_gb_s
    if best < GOOD_GB_S:
        yield f"{best:.1f} GB/s between the nodes, {low:g} to {high:g} are expected"
    nodes = len(record.nodes)
    token = record.of_use("one token")
    slowest = most_exchanges(nodes) * Constants().allreduce_high_us
    if token is not None and token.latency_us > slowest:
        known = (
            "were seen elsewhere" if nodes == MEASURED_NODES else f"are expected of {nodes} nodes"
        )
        yield (
            f"an all-reduce of one token takes {token.latency_us:.0f} us, "
            f"at most {slowest:.0f} {known}"
        )


def _of_memory(nodes: Sequence[FabricNode]) -> Iterator[str]:
    """Yield why memory is slow; no node's is less than what decoding itself gets of it."""
    usual = Constants()
    least = usual.bandwidth * usual.eta_moe / 1e9
    for node in nodes:
        best = max(node.copy_gb_s, node.triad_gb_s)
        if best < least:
            yield (
                f"the memory of {node.name} does {best:.0f} GB/s of {usual.bandwidth / 1e9:.0f}, "
                f"at least {least:.0f} are expected"
            )
    rates = {node.name: max(node.copy_gb_s, node.triad_gb_s) for node in nodes}
    slow, fast = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    if rates[slow] < (1 - UNEVEN) * rates[fast]:
        yield f"the memory of {slow} is slower than that of {fast}: they should be alike"


def _of_nodes(nodes: Sequence[FabricNode]) -> Iterator[Cause]:
    """Yield what the nodes' own facts show."""
    for node in nodes:
        if len(node.hcas) < TWINS:
            found = ", ".join(node.hcas) or "none"
            yield Cause("twin-without-address", f"{node.name}: RDMA devices of the link: {found}")
        if node.mtu is not None and node.mtu < FULL_MTU:
            yield Cause("link-small-frames", f"{node.name}: MTU {node.mtu}")


def _by_figures(record: FabricRecord, *, explained: bool) -> Iterator[Cause]:
    """Yield what has such figures; of the link only where nothing explains them already."""
    best = record.best_gb_s
    seen = f"{best:.1f} GB/s"
    one_path = any(len(node.hcas) < TWINS for node in record.nodes)
    if explained or best >= GOOD_GB_S or (one_path and best > DEGRADED_GB_S):
        pass
    elif best <= DEGRADED_GB_S:
        yield Cause("link-at-13-gbps", seen)
        yield Cause("engine-on-lan", seen)
    elif best <= ONE_TWIN_GB_S:
        for issue in ("nccl-one-twin", "twins-in-one-subnet", "link-half-up", "link-at-100g"):
            yield Cause(issue, f"{seen}, what one twin alone carries")
        yield Cause("pcie-two-lanes", seen)
    else:
        yield Cause("rdma-below-rate", seen)
    for reason in _of_memory(record.nodes):
        yield Cause("gpu-throttled", reason)


def _of_logs(nodes: Sequence[FabricNode]) -> Iterator[Cause]:
    """Yield the issues that the lines of NCCL show.

    `NET/Socket` is listed where RDMA is taken, too: what the catalogue says clears it counts.
    """
    for node in nodes:
        marks = {mark for line in node.nccl_log for mark in marks_in(line)}
        came_to_nothing = {id for kind, id in marks if kind == "cleared_by"}
        came_to_nothing -= {id for kind, id in marks if kind == "confirmed_by"}
        for line in node.nccl_log:
            for issue in recognise(line):
                if issue.id not in came_to_nothing:
                    yield Cause(issue.id, f"{node.name}: {issue.title}: {line}")
