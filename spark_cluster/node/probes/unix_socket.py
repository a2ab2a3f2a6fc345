"""A talk with a program over its socket: standard input goes there, the answer to the output."""

from __future__ import annotations

import socket
import sys

NOT_RUNNING = 3
"""Status when no program listens there."""


def main(path: str, seconds: str) -> int:
    """Send all of standard input, and print the answer to its end; returns the exit status.

    Args:
        seconds: for each step.
    """
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(float(seconds))
        try:
            there.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return NOT_RUNNING
        there.sendall(sys.stdin.buffer.read())
        while block := there.recv(65536):
            sys.stdout.buffer.write(block)
    return 0
