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

RECEIVE = """\
import json, socket, sys, threading, time
address, port, streams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
server = socket.create_server((address, port), backlog=streams)
server.settimeout(10)
total, first, last, lock = 0, [], [], threading.Lock()
def take(connection):
    global total
    buffer, seen = bytearray(1 << 22), 0
    while True:
        count = connection.recv_into(buffer, len(buffer), socket.MSG_TRUNC)
        if not count:
            break
        if not seen:
            first.append(time.monotonic())
        seen += count
    with lock:
        total += seen
        last.append(time.monotonic())
workers = []
for _ in range(streams):
    connection, _peer = server.accept()
    connection.settimeout(10)
    workers.append(threading.Thread(target=take, args=(connection,)))
    workers[-1].start()
for worker in workers:
    worker.join()
print(json.dumps({"bytes": total, "seconds": max(last) - min(first)}))
"""

SEND = """\
import os, socket, sys, threading, time
address, (port, streams), seconds = sys.argv[1], map(int, sys.argv[2:4]), float(sys.argv[4])
memory = os.memfd_create("probe")
os.ftruncate(memory, 1 << 24)
os.pwrite(memory, b"x" * (1 << 24), 0)
def connect():
    until = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection((address, port), timeout=5)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
def give(connection):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        os.sendfile(connection.fileno(), memory, 0, 1 << 24)
    connection.close()
connections = [connect() for _ in range(streams)]
for connection in connections:
    connection.settimeout(None)
workers = [threading.Thread(target=give, args=(c,)) for c in connections]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""


@dataclass(frozen=True)
class Measured:
    """Gbit/s, or why there is no figure."""

    rate: float | None
    output: str = ""


def measure(
    sender: Session, receiver: Session, address: str, *, port: int = PORT, python: str = "python3"
) -> Measured:
    """Measure one transfer from one node to an address of another (or of itself)."""
    words = [address, str(port), str(STREAMS)]
    waiting = _start(receiver, [python, "-c", RECEIVE, *words])
    sending = _start(sender, [python, "-c", SEND, *words, f"{SECONDS:g}"])
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


def _start(session: Session, argv: list[str]) -> Pending:
    return session.submit("run", argv=argv, timeout=30.0)


def _end(pending: Pending) -> Output:
    try:
        reply = pending.wait()
    except SparkClusterError as error:
        return Output(1, "", error.message)
    return Output(reply["status"], reply["stdout"], reply["stderr"])
