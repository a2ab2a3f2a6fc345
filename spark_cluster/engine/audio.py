"""A sound to ask about, and the form in which it is sent."""

from __future__ import annotations

import io
import math
import struct
import wave
from collections.abc import Mapping

RATE = 16_000
"""Samples/s, which speech models work with."""

BOUNDARY = "spark-cluster-3f6c0a7d2b9e4815"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def tone(seconds: float = 1.0, hertz: float = 440.0) -> bytes:
    """Return a WAV file with a quiet tone (mono, 16 bits). Speech cannot be made without a tool."""
    samples = [
        round(8000 * math.sin(2 * math.pi * hertz * at / RATE)) for at in range(int(seconds * RATE))
    ]
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return target.getvalue()


def form(fields: Mapping[str, str], name: str, content: bytes) -> bytes:
    """Return the body of a multipart form (RFC 7578): its fields, and one WAV file as `file`."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), content, f"\r\n--{BOUNDARY}--\r\n".encode()])
