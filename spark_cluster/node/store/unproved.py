"""Connections to a copy's sender that have not proved the token: few at a time, for seconds each.

Anyone who reaches the port can open one and say nothing, or a byte now and then. So each has a
limit for all that it says, and where there are too many the oldest goes for a new one: a receiver
needs milliseconds, and whoever only holds a place loses it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

PROOF_S = 5.0
"""Seconds for the TLS handshake and the proof together."""
MOST = 128
MOST_OF_ONE = 32
"""Of one address, so that it takes no place from another one."""
PACE_S = 0.005
"""Seconds between two connections of which the second took the place of a third: a receiver has
MOST_OF_ONE times this at least, however quickly others connect again."""


class Unproved:
    """The connections of a sender that are not proved yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[socket.socket, tuple[str, float]] = {}
        """Connection to its address and its begin, the oldest first."""

    def add(self, connection: socket.socket, host: str) -> bool:
        """Take in a new connection; return whether an older one was cut for it."""
        with self._lock:
            same = [one for one, (address, _) in self._since.items() if address == host]
            full = same if len(same) >= MOST_OF_ONE else [*self._since]
            too_many = len(same) >= MOST_OF_ONE or len(full) >= MOST
            if too_many:
                self._cut(full[0])
            self._since[connection] = host, time.monotonic()
        return too_many

    def take_out(self, connection: socket.socket) -> bool:
        """Forget a connection that is proved or closed; return False where it was cut before."""
        with self._lock:
            return self._since.pop(connection, None) is not None

    def cut_late(self) -> None:
        """Cut those that have had their time."""
        late = time.monotonic() - PROOF_S
        with self._lock:
            for connection in [one for one, (_, since) in self._since.items() if since < late]:
                self._cut(connection)

    def _cut(self, connection: socket.socket) -> None:
        """End it; the thread that reads from it sees its end. The lock is held."""
        del self._since[connection]
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # Not SSLSocket's: that would have its thread go on without TLS.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
