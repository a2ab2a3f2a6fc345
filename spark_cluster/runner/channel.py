"""A two-way byte stream to an agent, as a session needs it."""

from __future__ import annotations

from typing import Protocol

TAKES_NOTHING_S = 30.0
"""Seconds in which an agent takes not one byte more; then it is lost."""


class Channel(Protocol):
    """The interface of a connection that a session needs."""

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError when the connection is gone."""

    def receive(self, timeout: float) -> bytes:
        """Return what has come; empty at the end. Raises TimeoutError after `timeout` seconds."""

    def stderr(self) -> str:
        """Return what has come on standard error so far."""

    def status(self) -> int | None:
        """Return the exit status, once it has ended and reported one."""

    def close(self) -> None:
        """End the connection; the agent sees the end of its input."""
