"""The TCP throughput between two nodes, measured with nothing but their Python.

Data is not copied on either side (sendfile from memory, MSG_TRUNC), so that the link is the limit
before the processor is; the same over a node's own loopback says where its limit lies.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.session import Output, Pending, Session

STREAMS = 8
SECONDS = 1.0
PORT = 18517

RECEIVER = "spark_cluster.node.probes.receiver"
SENDER = "spark_cluster.node.probes.sender"


@dataclass(frozen=True)
class Measured:
    """Gbit/s, or why there is no figure."""

    rate: float | None
    output: str = ""


def measure(sender: Session, receiver: Session, address: str, *, port: int = PORT) -> Measured:
    """Measure one transfer from one node to an address of another (or of itself)."""
    words = [address, str(port), str(STREAMS)]
    waiting = _start(receiver, RECEIVER, words)
    sending = _start(sender, SENDER, [*words, f"{SECONDS:g}"])
    sent, received = _end(sending), _end(waiting)
    if received.status != 0 or sent.status != 0:
        fault = received if received.status != 0 else sent
        return Measured(None, (fault.stderr.strip().splitlines() or ["it ended early"])[-1])
    return rate_of(received.stdout)


def rate_of(text: str) -> Measured:
    """Parse what the receiver printed.

    >>> rate_of('{"bytes": 12500000000, "seconds": 1.0}')
    Measured(rate=100.0, output='')
    """
    try:
        found = json.loads(text)
        return Measured(found["bytes"] * 8 / max(found["seconds"], sys.float_info.epsilon) / 1e9)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return Measured(None, f"the receiver said {text[:80]!r}")


def _start(session: Session, program: str, words: list[str]) -> Pending:
    return session.submit("run", program=program, argv=words, timeout=30.0)


def _end(pending: Pending) -> Output:
    try:
        reply = pending.wait()
    except SparkClusterError as error:
        return Output(1, "", error.message)
    return Output(reply["status"], reply["stdout"], reply["stderr"])
