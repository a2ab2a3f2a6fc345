"""A talk with a program over its socket: standard input goes there, the answer to the output."""

from __future__ import annotations

import socket
import sys

NOT_RUNNING = 3
"""Status when no program listens there."""


def ask(path: str, text: bytes, limit_s: float) -> bytes:
    """Send a text, and return the answer to its end.

    Args:
        limit_s: seconds for each step.

    Raises:
        OSError: no program listens there, or it does not answer in time.
    """
    found = b""
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(limit_s)
        there.connect(path)
        there.sendall(text)
        while block := there.recv(65536):
            found += block
    return found


def main(path: str, seconds: str) -> int:
    """Send all of standard input, and print the answer; returns the exit status.

    Args:
        seconds: for each step.
    """
    try:
        sys.stdout.buffer.write(ask(path, sys.stdin.buffer.read(), float(seconds)))
    except (FileNotFoundError, ConnectionRefusedError):
        return NOT_RUNNING
    return 0
