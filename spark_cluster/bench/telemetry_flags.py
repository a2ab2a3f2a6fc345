"""What telemetry says of a measurement: reasons against it, and the acceptance of drafted tokens.

The counters of drafts are in the sampler's lines, once a second (see node/telemetry.py). Of a
cell what counts is by how much they grew between its begin and its end, with its warm-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from spark_cluster.bench.record import CellResult, Metric, MetricName
from spark_cluster.bench.telemetry import MIB, Drafts, Row
from spark_cluster.config.facts import SLOW_MHZ

LEAST_S = 3.0
"""Seconds of a state that are worth a word: clocks need a moment to rise."""

SWAPPED_MIB = 64
"""MiB moved to or from swap in a stretch from which it is flagged. Our choice: less is pages that
were idle before."""

RDMA_SHARE = 0.9
"""Share of the link's bytes that RDMA must move to prove RoCE. Our choice: Ray's control and the
first meeting of the ranks go over TCP, a fall-back of NCCL to sockets moves all of it so."""

LINK_BYTES = MIB
"""Bytes over the link below which it carried no tensor parallelism at all."""

MISSING_SHARE = 0.1
"""Share of a stretch without rows from which it is flagged. Our choice."""

SETTLED_S = 1.5
"""Seconds after a cell in which a line may still say what the counters were before its end. The
load generator of the next cell takes longer to start."""


@dataclass(frozen=True)
class Stretch:
    """The rows of one node between two moments, each with the seconds that it stands for."""

    node: str
    rows: tuple[tuple[Row, float], ...]
    seconds: float


def with_telemetry(
    cells: Sequence[CellResult],
    rows: Sequence[Row],
    engines: Sequence[Sequence[Drafts]],
    nodes: Sequence[str],
    tp: int,
) -> list[CellResult]:
    """Return results with what telemetry says of them.

    The acceptance of drafts that the load generator told stays.

    Args:
        rows: of these nodes and perhaps others, in any order.
        engines: the counters of each engine that served, in the order of time.
        nodes: those of the servers that were measured.
        tp: nodes of one of them.
    """
    found = []
    for cell in cells:
        changed: dict[str, object] = {}
        if cell.started is not None and cell.finished is not None:
            metrics = _acceptance(cell, engines, cell.started, cell.finished) | cell.metrics
            more = attention(rows, cell.started, cell.finished, nodes, tp) if rows and nodes else ()
            changed = {"metrics": metrics, "attention": (*cell.attention, *more)}
        found.append(cell.model_copy(update=changed))
    return found


def _acceptance(
    cell: CellResult, engines: Sequence[Sequence[Drafts]], started: datetime, finished: datetime
) -> dict[MetricName, Metric]:
    if cell.status != "ok" or cell.key.context_prefill or "acceptance" in cell.metrics:
        return {}
    grown = [_grown(found, started, finished) for found in engines]
    steps, drafted, accepted = (sum(one[k] for one in grown) for k in range(3))
    if not (steps > 0 and 0 <= accepted <= drafted and drafted > 0):
        return {}
    return {
        "acceptance": Metric(mean=accepted / drafted),
        # Each step also gives the token that the model itself makes.
        "acceptance_length": Metric(mean=1 + accepted / steps),
    }


def _grown(
    found: Sequence[Drafts], started: datetime, finished: datetime
) -> tuple[float, float, float]:
    """Return by how much drafts, drafted and accepted tokens grew; where an engine was started
    again in between, what it counted before is left out."""
    begin, end = started.timestamp(), finished.timestamp()
    before = [one for one in found if one.time <= begin][-1:]
    within = [one for one in found if begin < one.time <= end + SETTLED_S]
    total = [0.0, 0.0, 0.0]
    for a, b in pairwise([*before, *within]):
        more = (b.steps - a.steps, b.drafted - a.drafted, b.accepted - a.accepted)
        if min(more) >= 0:
            total = [old + new for old, new in zip(total, more, strict=True)]
    return total[0], total[1], total[2]


def attention(
    rows: Iterable[Row], start: datetime, end: datetime, nodes: Sequence[str], tp: int = 1
) -> tuple[str, ...]:
    """Return what to be careful about in a measurement, as sentences for `CellResult.attention`.

    Args:
        rows: of these nodes and perhaps others, in any order.
        start, end: of the measurement, UTC.
        nodes: those that served it.
        tp: nodes of a server; from 2 on RoCE has to be proven.
    """
    known = tuple(rows)
    found = [stretch(known, node, start, end) for node in nodes]
    reasons = [text for one in found for text in _of_node(one)]
    return (*reasons, *(_roce(found) if tp > 1 else ()))


def stretch(rows: Iterable[Row], node: str, start: datetime, end: datetime) -> Stretch:
    """Return the rows of a node in a stretch of time, each until the next one."""
    inside = sorted(
        (r for r in rows if r.node == node and start <= r.time <= end), key=lambda row: row.time
    )
    usual = _usual([(b.time - a.time).total_seconds() for a, b in pairwise(inside)])
    ends = [*(row.time for row in inside[1:]), end]
    lasting = [
        (row, min((until - row.time).total_seconds(), 2 * usual))
        for row, until in zip(inside, ends, strict=False)
    ]
    return Stretch(node, tuple(lasting), (end - start).total_seconds())


def _usual(gaps: Sequence[float]) -> float:
    """The interval at which the sampler ran: the median gap; a second when there is none."""
    return sorted(gaps)[len(gaps) // 2] if gaps else 1.0


def _of_node(found: Stretch) -> Iterable[str]:
    if not found.rows:
        yield f"{found.node}: no telemetry of this time"
        return
    known = sum(seconds for _, seconds in found.rows)
    if found.seconds - known > max(LEAST_S, MISSING_SHARE * found.seconds):
        yield (
            f"{found.node}: no telemetry for {found.seconds - known:.0f} of {found.seconds:.0f} s"
        )
    yield from _clock(found)
    yield from _throttle(found)
    yield from _swap(found)


def _clock(found: Stretch) -> Iterable[str]:
    slow = [(row, seconds) for row, seconds in found.rows if row.is_slow]
    seconds = sum(s for _, s in slow)
    if seconds >= LEAST_S:
        lowest = min((row for row, _ in slow), key=lambda row: row.sm_clock_mhz or 0)
        at = f"{lowest.sm_clock_mhz:.0f} MHz"
        at += f" at {lowest.power_w:.0f} W" if lowest.power_w is not None else ""
        yield (
            f"{found.node}: SM clock under {SLOW_MHZ / 1000:g} GHz for {seconds:.0f} s under load "
            f"(lowest {at})"
        )


def _throttle(found: Stretch) -> Iterable[str]:
    held: dict[str, float] = {}
    for row, seconds in found.rows:
        for reason in filter(None, (row.throttle or "").split(",") if row.is_busy else ()):
            held[reason] = held.get(reason, 0.0) + seconds
    for reason, seconds in held.items():
        if seconds >= LEAST_S:
            yield f"{found.node}: clocks limited for {seconds:.0f} s under load ({reason})"


def _swap(found: Stretch) -> Iterable[str]:
    moved = sum((row.swap_bytes_s or 0.0) * seconds for row, seconds in found.rows) / MIB
    if moved >= SWAPPED_MIB:
        yield f"{found.node}: {moved:.0f} MiB were moved to and from swap"


def _roce(found: Sequence[Stretch]) -> Iterable[str]:
    rows = [(row, seconds) for one in found for row, seconds in one.rows]
    by_rdma = _bytes(rows, "rdma_rx_bytes_s", "rdma_tx_bytes_s")
    by_tcp = _bytes(rows, "link_rx_bytes_s", "link_tx_bytes_s") or 0.0
    if by_rdma is None:
        yield "RoCE is not proven: the nodes have no RDMA port counters"
    elif by_rdma + by_tcp < LINK_BYTES:
        yield f"RoCE is not proven: only {size(by_rdma + by_tcp)} went over the link"
    elif by_rdma < RDMA_SHARE * (by_rdma + by_tcp):
        yield (
            f"RoCE is not proven: {size(by_rdma)} went over the HCAs by RDMA, "
            f"{size(by_tcp)} over their interfaces by TCP/IP"
        )
    errors = sum(row.rdma_errors or 0 for row, _ in rows)
    if errors:
        yield f"the HCAs counted {errors} errors and retransmissions"


def _bytes(rows: Sequence[tuple[Row, float]], *names: str) -> float | None:
    """Return the bytes that these rates amount to; None when none of them is known."""
    moved = [(getattr(row, name), seconds) for row, seconds in rows for name in names]
    known = [rate * seconds for rate, seconds in moved if rate is not None]
    return sum(known) if known else None


def size(count: float) -> str:
    """Bytes as people read them.

    >>> size(1234567890)
    '1.2 GB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"
