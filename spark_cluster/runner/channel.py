"""A two-way byte stream to an agent, as a session needs it."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from typing import Any

TAKES_NOTHING_S = 30.0
"""Seconds in which an agent takes not one byte more; then it is lost."""

SLOWEST = 4096
"""Bytes a second that must come and go, on average, of what takes longer than some seconds; the
slowest link to work over."""

SLICE = 64 * 1024
"""Bytes sent or received at once; paramiko copies what is left after each packet."""


class TakesNothing(OSError):
    """An agent does not read what is sent to it. Half a frame was sent: nothing can follow it."""


def must_take(taken: int, begun: float, last: float) -> None:
    """Check that an agent reads what is sent to it.

    Args:
        taken: bytes that it has taken since `begun`, the last of them at `last`.

    Raises:
        TakesNothing: it reads nothing, or less than a node that is well.
    """
    now = time.monotonic()
    if now - last > TAKES_NOTHING_S:
        raise TakesNothing(f"the node has read nothing for {TAKES_NOTHING_S:g} s")
    if now - begun > TAKES_NOTHING_S + taken / SLOWEST:
        raise TakesNothing(f"the node has read only {taken} bytes in {now - begun:.0f} s")


class Channel(ABC):
    """The connection to an agent's process that a session needs.

    Args:
        stream: a socket, or what has `send`, `recv` and `settimeout` as one.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError when the connection is gone."""
        rest = memoryview(data)
        begun = last = time.monotonic()
        while rest:
            must_take(len(data) - len(rest), begun, last)
            with contextlib.suppress(TimeoutError):  # that of `receive`; a window may need longer
                rest = rest[self._stream.send(bytes(rest[:SLICE])) :]
                last = time.monotonic()

    def receive(self, timeout: float) -> bytes:
        """Return what has come; empty at the end. Raises TimeoutError after `timeout` seconds."""
        self._stream.settimeout(timeout)
        return bytes(self._stream.recv(SLICE))

    @abstractmethod
    def stderr(self) -> str:
        """Return what has come on standard error so far."""

    @abstractmethod
    def status(self) -> int | None:
        """Return the exit status, once it has ended and reported one."""

    @abstractmethod
    def close(self) -> None:
        """End the connection; the agent sees the end of its input."""
