"""The sending end of a measured transfer, from memory and without copies."""

from __future__ import annotations

import os
import socket
import threading
import time

CONNECT_S = 5.0
"""Seconds until the receiver must listen."""

BLOCK = 1 << 24
"""Bytes that are sent at once."""


def main(address: str, port: str, streams: str, seconds: str) -> None:
    """Send over several connections at once for some seconds."""
    memory = os.memfd_create("probe")
    os.ftruncate(memory, BLOCK)
    os.pwrite(memory, b"x" * BLOCK, 0)

    def give(connection: socket.socket) -> None:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            os.sendfile(connection.fileno(), memory, 0, BLOCK)
        connection.close()

    connections = [_connected(address, int(port)) for _ in range(int(streams))]
    workers = [threading.Thread(target=give, args=(one,)) for one in connections]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _connected(address: str, port: int) -> socket.socket:
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=CONNECT_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            connection.settimeout(None)
            return connection
