"""The bytes of a conversation with an agent: frames that come, pieces of content that go."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_cluster.agent import frames
from spark_cluster.runner.channel import SLOWEST

FRAME_S = 30.0
"""Seconds that a frame may take to come, whatever its size."""


class FrameBuffer:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._begun = 0.0
        """When the frame that is being received began."""

    @property
    def is_partial(self) -> bool:
        """True if a frame has begun."""
        return bool(self._data)

    def why_too_slow(self) -> str:
        """Return how little has come of a frame that takes too long; nothing while it does not."""
        seconds, size = time.monotonic() - self._begun, len(self._data)
        if not size or size >= (seconds - FRAME_S) * SLOWEST:
            return ""
        whole = int.from_bytes(self._data[:4], "big") + 4 if size >= 4 else "unknown size"
        return f"{size} bytes of a message of {whole} have come in {seconds:.0f} s"

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take what has come, and return the messages that are whole now.

        Raises:
            ValueError: it is not a frame, or not of JSON.
        """
        if not self._data:
            self._begun = time.monotonic()
        self._data += data
        events = []
        while len(self._data) >= 4:
            size = int.from_bytes(self._data[:4], "big")
            if size > frames.LIMIT:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._data) < 4 + size:
                break
            event = frames.read(io.BytesIO(bytes(self._data[: 4 + size])))
            if event is not None:
                events.append(event)
            del self._data[: 4 + size]
            self._begun = time.monotonic()
        return events


def pieces(content: bytes | Path, begin: int, size: int | None) -> Iterator[bytes]:
    """A part of a content, in frames' size; an empty piece where it has less."""
    if isinstance(content, bytes):
        source: Any = io.BytesIO(content)
    else:
        try:
            source = content.open("rb")
        except OSError:
            yield b""
            return
    with source:
        source.seek(begin)
        left = size if size is not None else sys.maxsize
        while left > 0:
            try:
                piece = source.read(min(left, frames.PIECE))
            except OSError:
                piece = b""
            yield piece
            if not piece:
                return
            left -= len(piece)
