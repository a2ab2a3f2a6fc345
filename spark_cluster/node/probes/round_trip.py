"""The time of a round trip: a TCP connection is made in one."""

from __future__ import annotations

import socket
import statistics
import time

CONNECT_S = 5.0


def main(host: str, port: str, tries: str) -> None:
    """Print the median time in ms in which a connection is made."""
    taken = []
    for _ in range(int(tries)):
        began = time.perf_counter()
        socket.create_connection((host, int(port)), CONNECT_S).close()
        taken.append(time.perf_counter() - began)
    print(1e3 * statistics.median(taken))
