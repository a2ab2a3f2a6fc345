"""The state of all nodes as `top` shows it: the last row of each, and whether it still answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.sampling import Lost, Update
from spark_cluster.bench.telemetry import Row
from spark_cluster.errors import SparkClusterError
from spark_cluster.facts.model import BUSY_PERCENT, SLOW_MHZ

SILENT_S = 5.0
"""Seconds (and three intervals) without a row after which a node is shown as silent."""


@dataclass
class NodeState:
    """The state of a node, as far as it is known.

    Attributes:
        rows: how many have come.
        processes: of the last reading.
        lost: why it does not answer; None while it does.
        for_good: it is not connected to again.
    """

    name: str
    row: Row | None = None
    rows: int = 0
    processes: tuple[ProcessMemory, ...] = ()
    lost: SparkClusterError | None = None
    for_good: bool = False
    heard: float = field(default_factory=time.monotonic)

    @property
    def silent_s(self) -> float:
        """Seconds since its last row, or since the beginning."""
        return time.monotonic() - self.heard


class LiveState:
    """The state of all nodes.

    Args:
        names: of the nodes, in the order in which they are shown.
        every: seconds between two rows.
    """

    def __init__(self, names: Iterable[str], every: float) -> None:
        self.nodes = {name: NodeState(name) for name in names}
        self._silent_s = max(SILENT_S, 3 * every)

    def take(self, update: Update) -> bool:
        """Take in what a node sends; True if it is news (each row, and a loss the first time)."""
        if isinstance(update, Lost):
            node = self.nodes[update.node]
            known = node.lost is not None and node.lost.message == update.error.message
            node.lost, node.for_good = update.error, update.for_good
            return not known
        node = self.nodes[update.node]
        node.row, node.lost, node.heard = update, None, time.monotonic()
        node.rows += 1
        if update.processes is not None:
            node.processes = update.processes
        return True

    def trouble(self, node: NodeState) -> str:
        """Return why a node shows nothing of now; empty while it answers."""
        if node.lost is not None:
            again = "" if node.for_good else "; connecting again"
            return f"{node.lost.message}{again}"
        if node.silent_s <= self._silent_s:
            return "" if node.row is not None else "connecting"
        return f"no answer for {node.silent_s:.0f} s"

    def has(self, count: int) -> bool:
        """Return whether each node that answers has sent so many rows, and one does."""
        waited_for = [node for node in self.nodes.values() if node.lost is None]
        return bool(waited_for) and all(node.rows >= count for node in waited_for)

    def first_loss(self) -> SparkClusterError | None:
        """Return the error when no node has ever sent a row and none is still being tried."""
        nodes = list(self.nodes.values())
        if any(node.rows or node.lost is None for node in nodes):
            return None
        return next((node.lost for node in nodes if node.lost is not None), None)

    def never_seen(self) -> list[NodeState]:
        """Return the nodes that have sent nothing."""
        return [node for node in self.nodes.values() if not node.rows]


def warnings(row: Row) -> list[str]:
    """Return what is wrong with a node at this moment, in a few words each."""
    found = []
    busy = (row.utilisation or 0) >= BUSY_PERCENT
    if row.throttle:
        found.append(f"throttled: {row.throttle.replace(',', ', ')}")
    if busy and row.sm_clock_mhz is not None and row.sm_clock_mhz < SLOW_MHZ:
        found.append(f"SM clock under {SLOW_MHZ / 1000:g} GHz under load")
    if row.swap_bytes_s:
        found.append("swapping")
    if row.rdma_errors:
        found.append(f"{row.rdma_errors} RDMA errors")
    return [*found, *row.notes]
