"""Carry connections into a network namespace: `python3 namespace_relay.py PORT`, run by nsenter.

Standard input is a listening socket, which stays in the namespace that it was made in; new
connections are made in the one that this program runs in, to PORT of its loopback. The program ends
when nobody reads its standard output any more, as when who started it was killed. Standard library
only, and nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading

LOOPBACK = "127.0.0.1"
BLOCK = 65536
CONNECTS_WITHIN_S = 10.0


def carry(source: socket.socket, sink: socket.socket) -> None:
    """Copy one direction to its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(BLOCK):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def both_ways(accepted: socket.socket, port: int) -> None:
    """Carry a connection until both of its directions have ended."""
    with contextlib.ExitStack() as kept, contextlib.suppress(OSError):
        kept.enter_context(accepted)
        there = socket.create_connection((LOOPBACK, port), timeout=CONNECTS_WITHIN_S)
        kept.enter_context(there)
        there.settimeout(None)
        up = threading.Thread(target=carry, args=(accepted, there), daemon=True)
        up.start()
        carry(there, accepted)
        up.join()


def end_with_the_reader() -> None:
    """Wait until nobody reads standard output, then end."""
    poll = select.poll()
    poll.register(1, 0)  # POLLERR is always told
    poll.poll()
    os._exit(0)


def main(port: int) -> None:
    """Accept connections until the program is ended."""
    threading.Thread(target=end_with_the_reader, daemon=True).start()
    listener = socket.socket(fileno=os.dup(0))
    while True:
        accepted, _ = listener.accept()
        threading.Thread(target=both_ways, args=(accepted, port), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
