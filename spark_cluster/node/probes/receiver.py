"""The receiving end of a measured transfer: it keeps nothing of what comes."""

from __future__ import annotations

import json
import socket
import threading
import time

WAIT_S = 10.0
"""Seconds for a connection, and for data on one."""

BUFFER = 1 << 22


def main(address: str, port: str, streams: str) -> None:
    """Take the streams of a sender to their end; print bytes and seconds as JSON."""
    total, first, last, lock = 0, [], [], threading.Lock()

    def take(connection: socket.socket) -> None:
        nonlocal total
        buffer, seen = bytearray(BUFFER), 0
        while count := connection.recv_into(buffer, BUFFER, socket.MSG_TRUNC):
            if not seen:
                first.append(time.monotonic())
            seen += count
        with lock:
            total += seen
            last.append(time.monotonic())

    server = socket.create_server((address, int(port)), backlog=int(streams))
    server.settimeout(WAIT_S)
    workers = []
    for _ in range(int(streams)):
        connection, _peer = server.accept()
        connection.settimeout(WAIT_S)
        workers.append(threading.Thread(target=take, args=(connection,)))
        workers[-1].start()
    for worker in workers:
        worker.join()
    print(json.dumps({"bytes": total, "seconds": max(last) - min(first)}))
