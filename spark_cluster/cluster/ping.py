"""Reach every node and time it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.dialer import Dialer


@dataclass(frozen=True)
class Reached:
    """A node that answers.

    Attributes:
        rtt_ms: one network turn, with the agent's part, milliseconds.
        connect_ms: to connect and start an agent, milliseconds.
        python: the version of its Python.
    """

    rtt_ms: float
    connect_ms: float
    python: str


@dataclass(frozen=True)
class PingResult:
    """The answers of the nodes.

    Attributes:
        nodes: name to the answer, or to the error of a node that was not reached.
    """

    nodes: Mapping[str, Reached | SparkClusterError]

    @property
    def errors(self) -> dict[str, SparkClusterError]:
        """The errors of the nodes that were not reached, by name."""
        return {n: o for n, o in self.nodes.items() if isinstance(o, SparkClusterError)}

    @property
    def ok(self) -> bool:
        """True if every node was reached."""
        return not self.errors

    def to_dict(self) -> dict[str, Any]:
        """Return it as `ping --json` prints it."""
        return {"nodes": [document(name, outcome) for name, outcome in self.nodes.items()]}


def ping(opened: Opened) -> PingResult:
    """Connect to every selected node, start an agent without sudo, and measure one round trip."""
    from spark_cluster.runner.parallel import in_parallel

    jobs = {node.name: partial(_reach, opened.dialer, node) for node in opened.nodes}
    return PingResult(in_parallel(jobs))


def _reach(dialer: Dialer, node: InventoryNode) -> Reached:
    started = time.monotonic()
    with dialer.session(node, "ping", become=False) as session:
        python = session.request("gather")["machine"]["python"]
        connected = time.monotonic()
        session.request("gather")
        rtt = time.monotonic() - connected
    return Reached(round(rtt * 1000, 2), round((connected - started) * 1000, 1), python)


def document(name: str, outcome: Reached | SparkClusterError) -> dict[str, object]:
    """Return one node as `ping --json` prints it."""
    if isinstance(outcome, Reached):
        return {
            "name": name,
            "reachable": True,
            "rtt_ms": outcome.rtt_ms,
            "connect_ms": outcome.connect_ms,
            "python": outcome.python,
        }
    return {
        "name": name,
        "reachable": False,
        "rtt_ms": None,
        "error": outcome.message,
        "hint": outcome.hint,
    }
