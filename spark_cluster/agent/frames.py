"""The wire between laptop and agent: length-prefixed frames, JSON or raw bytes.

A frame is four bytes of length (big endian) and that many bytes. No pickle, no line endings:
what a command prints can never be taken for the protocol.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Protocol

LIMIT = 128 * 1024 * 1024
"""Longest frame, bytes; who sends checks it as well as who receives. More than any document and
than two outputs at their limit (node/output.py), each byte of which JSON may need six for."""

PIECE = 1024 * 1024
"""Bytes of a content in one frame: contents of any size travel in pieces."""


class FrameTooLong(ValueError):
    """A message that is longer than a frame may be."""


class ByteStream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def pack(message: dict[str, Any] | bytes) -> bytes:
    """Encode one frame.

    Raises:
        TooLong: it would be longer than LIMIT.
    """
    data = (
        message
        if isinstance(message, bytes)
        else json.dumps(message, separators=(",", ":")).encode()
    )
    if len(data) > LIMIT:
        raise FrameTooLong(f"{len(data) >> 20} MiB, of which {LIMIT >> 20} MiB can be sent at once")
    return struct.pack(">I", len(data)) + data


def read_raw(stream: ByteStream) -> bytes | None:
    """The next frame's bytes, or None at the end of the stream.

    Raises:
        ValueError: the stream ends inside a frame, or it is no frame.
    """
    head = stream.read(4)
    if not head:
        return None
    if len(head) < 4:
        raise ValueError("the stream ended inside a frame")
    (size,) = struct.unpack(">I", head)
    if size > LIMIT:
        raise ValueError(f"a frame of {size} bytes, of which none has more than {LIMIT}")
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("the stream ended inside a frame")
    return data


def read(stream: ByteStream) -> dict[str, Any] | None:
    """The next JSON frame, or None at the end of the stream.

    Raises:
        ValueError: as `read_raw`, or it is not a JSON object.
    """
    data = read_raw(stream)
    if data is None:
        return None
    try:
        message = json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a frame that is not a JSON object")
    return message
