"""Ports for servers that tests start."""

import random
import socket

BESIDE_RAY = (20_000, 29_000)
"""Ports that none of our defaults is among, for what an inventory or recipe names."""


def free_port(first: int = 15_000, last: int = 32_000) -> int:
    """A port of the loopback on which nothing listens.

    It is none of those that the kernel gives to connections (32768 and above): these can be taken
    by another test between the look and the start of a server.
    """
    while True:
        port = random.SystemRandom().randrange(first, last)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
