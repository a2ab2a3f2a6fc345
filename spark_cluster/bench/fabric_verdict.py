"""The verdict on a link and the nodes' memory: as expected, or slow, with the known causes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_cluster.bench.fabric_record import FabricIssue, FabricNode, FabricRecord, Verdict
from spark_cluster.engine.link_check import DEGRADED_GBITS, GOOD_GBITS
from spark_cluster.known_issues.entries import catalogue
from spark_cluster.known_issues.log_matching import recognise
from spark_cluster.planning.speed.allreduce import MEASURED, most_exchanges
from spark_cluster.planning.speed.constants import Constants

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

_IB = re.compile(r"NET/IB : Using (?P<devices>.*)")
_DEVICE = re.compile(r"\[\d+\]([\w.-]+):")


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
        known = "were seen elsewhere" if nodes == MEASURED else f"are expected of {nodes} nodes"
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
    """Yield the issues that the lines of NCCL show."""
    for node in nodes:
        if uses_rdma(node.nccl_log) is False:
            yield Cause("nccl-sockets", f"{node.name}: NCCL uses TCP sockets, no RDMA")
        devices = rdma_devices(node.nccl_log)
        if len(devices) == 1:
            yield Cause("nccl-one-twin", f"{node.name}: NCCL uses {devices[0]} only")
        for line in node.nccl_log:
            for issue in recognise(line):
                if issue.id not in ("nccl-sockets", "nccl-one-twin"):
                    yield Cause(issue.id, f"{node.name}: {line}")


def uses_rdma(lines: Sequence[str]) -> bool | None:
    """Return whether NCCL took RDMA (NET/IB); None where its log does not say.

    `NET/Socket` is listed where RDMA is taken, too: the line that counts is the chosen network's.
    """
    for line in lines:
        if "Using network IB" in line or "via NET/IB" in line:
            return True
        if "Using network Socket" in line or "via NET/Socket" in line:
            return False
    return None


def rdma_devices(lines: Sequence[str]) -> list[str]:
    """Return the RDMA devices that NCCL uses."""
    for line in lines:
        found = _IB.search(line)
        if found:
            return _DEVICE.findall(found["devices"].partition("OOB")[0])
    return []
