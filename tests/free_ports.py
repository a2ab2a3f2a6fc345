"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port of the loopback on which nothing listens.

    It is none of those that the kernel gives to connections (32768 and above): these can be taken
    by another test between the look and the start of a server.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
