"""Samplers on the nodes, streamed to the laptop, and the state of all nodes as `top` shows it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.telemetry import LineReader, TelemetryRow
from spark_cluster.config.facts import SLOW_MHZ
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Failed, SparkClusterError, Unreachable
from spark_cluster.node.output import LINE_LIMIT
from spark_cluster.node.telemetry import PROGRAM, SamplerSettings
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.parallel import in_parallel, start
from spark_cluster.runner.session import Session

LABEL = "top"
"""Of the agents' processes."""

PAUSES = (1.0, 10.0)
"""Seconds until a lost node is connected to again: at first, and at most."""

SILENT_S = 5.0
"""Seconds (and three intervals) without a row after which a node is shown as silent."""


@dataclass(frozen=True)
class Lost:
    """A node that does not answer.

    Attributes:
        for_good: it is not connected to again.
    """

    node: str
    error: SparkClusterError
    for_good: bool = False


Update = TelemetryRow | Lost


def metrics_url(serve: ServeEntry) -> str:
    """Return the engine's `/metrics` page on a node that serves, as the inventory says.

    It is the engine's own port on the loopback: there it asks for no key, and no proxy is between.
    """
    return f"http://{LOOPBACK}:{serve.engine_port if serve.proxied else serve.port}/metrics"


class Sampling:
    """Samplers on several nodes, whose rows come to one queue; they end with the block.

    A node that is lost is connected to again until the end.

    Args:
        nodes: of the inventory.
        dialer: reaches them.
        settings: `every`, `slowly`, `metrics` of node/telemetry.py.
    """

    def __init__(self, nodes: Sequence[InventoryNode], dialer: Dialer, **settings: Any) -> None:
        self._nodes = nodes
        self._dialer = dialer
        self._settings = SamplerSettings(**settings)
        # Not a Queue: a signal that interrupts its lock leaves it broken.
        self._updates: queue.SimpleQueue[Update | BaseException] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Sampling:
        for node in self._nodes:
            start(partial(self._work, node))
        return self

    def __exit__(self, *_: object) -> None:
        """End all samplers. A node that is being connected to is not waited for: its thread ends
        what it has begun, or the end of the program does."""
        self._ended.set()
        with self._lock:
            jobs = {name: session.close for name, session in self._sessions.items()}
        in_parallel(jobs)

    def next(self, timeout: float) -> Update | None:
        """Return the next row or loss; None after so many seconds without one."""
        try:
            update = self._updates.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        if isinstance(update, BaseException):
            raise update
        return update

    # -- in a node's thread ----------------------------------------------------------------------

    def _work(self, node: InventoryNode) -> None:
        try:
            self._follow(node)
        except BaseException as error:  # noqa: BLE001  (handed to who waits)
            self._updates.put(error)

    def _follow(self, node: InventoryNode) -> None:
        pause, most = PAUSES
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                with contextlib.suppress(OSError):  # of a connection that was lost, closed
                    self._stream(node)
            except SparkClusterError as error:
                for_good = not isinstance(error, Unreachable)
                if not self._ended.is_set():
                    self._updates.put(Lost(node.name, error, for_good))
                if for_good:
                    return
            pause = PAUSES[0] if time.monotonic() - began > most else min(1.5 * pause, most)
            self._ended.wait(pause)

    def _stream(self, node: InventoryNode) -> None:
        """Hand on the rows of one connection until it ends.

        Raises:
            Unreachable: it was lost, or could not be made.
            Failed: the sampler has ended.
        """
        reader, last = LineReader(node.name), ""
        rest = ""

        def take(event: dict[str, Any]) -> None:
            nonlocal rest, last
            *lines, rest = (rest + event.get("text", "")).split("\n")
            rest = rest[-LINE_LIMIT:]
            for line in lines:
                row = reader.row(line)
                if row is not None:
                    self._updates.put(row)
                else:
                    last = line or last

        with self._dialer.session(node, LABEL) as session:
            with self._lock:
                self._sessions[node.name] = session
            if self._ended.is_set():
                return
            reply = session.request("stream", take, program=PROGRAM, argv=[self._settings.word])
        why = last[:200] or f"status {reply.get('status')}"
        raise Failed(f"the sampler has ended: {why}", where=node.name)


# -- what is known of the nodes now ----------------------------------------------------------------


@dataclass
class SampledNode:
    """The state of a node, as far as it is known.

    Attributes:
        rows: how many have come.
        processes: of the last reading.
        lost: why it does not answer; None while it does.
        for_good: it is not connected to again.
    """

    name: str
    row: TelemetryRow | None = None
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
        self.nodes = {name: SampledNode(name) for name in names}
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

    def trouble(self, node: SampledNode) -> str:
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

    def never_seen(self) -> list[SampledNode]:
        """Return the nodes that have sent nothing."""
        return [node for node in self.nodes.values() if not node.rows]


def warnings(row: TelemetryRow) -> list[str]:
    """Return what is wrong with a node at this moment, in a few words each."""
    found = []
    if row.throttle:
        found.append(f"throttled: {row.throttle.replace(',', ', ')}")
    if row.is_slow:
        found.append(f"SM clock under {SLOW_MHZ / 1000:g} GHz under load")
    if row.swap_bytes_s:
        found.append("swapping")
    if row.rdma_errors:
        found.append(f"{row.rdma_errors} RDMA errors")
    return [*found, *row.notes]
