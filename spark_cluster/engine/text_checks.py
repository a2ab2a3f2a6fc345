"""Judging a text without knowing what it is about, and a picture to ask about."""

from __future__ import annotations

import base64
import re
import struct
import zlib

LETTERS = 0.5
"""Least share of letters and spaces. Prose has above 0.9, program text about 0.7, NaN output 0."""

SHINGLE = 16
"""Characters in a row that are compared; longer than common words, shorter than a sentence."""

DISTINCT, DISTINCT_END = 0.5, 0.3
"""Least share of different shingles, in the whole text and in its second half. Prose has above
0.9; a loop of 100 characters has 0.1 after a thousand."""


SPECIAL = re.compile(
    r"<(?:\|?(?:pad|unk|bos|eos|mask|endoftext|end_of_text|im_start|im_end|eot_id)\|?)>"
    r"|\[(?:PAD|UNK|MASK)\]|<unused\d+>|\ufffd{2}",
    re.IGNORECASE,
)
"""Tokens that a tokenizer has for itself and no answer shows, and bytes that are no text."""


def incoherent(text: str) -> str:
    """Return why a text cannot come from a sound model; empty when it can."""
    if not text.strip():
        return "the reply is empty"
    if special := SPECIAL.search(text):
        return f"it has the special token {special.group()}"
    plain = sum(c.isalpha() or c.isspace() for c in text) / len(text)
    if plain < LETTERS:
        return f"only {plain:.0%} of it are letters"
    words = " ".join(text.split())
    whole, end = _distinct(words), _distinct(words[len(words) // 2 :])
    if whole < DISTINCT or end < DISTINCT_END:
        return f"it repeats itself ({min(whole, end):.0%} of it is new)"
    return ""


def _distinct(text: str) -> float:
    """Share of different shingles; 1 for a text too short to repeat itself."""
    count = len(text) - SHINGLE + 1
    if count < 2 * SHINGLE:
        return 1.0
    return len({text[i : i + SHINGLE] for i in range(count)}) / count


def png_url(width: int, height: int, pixels: bytes) -> str:
    """Return a picture as a `data:` URL (PNG, RGB, 8 bits).

    Args:
        pixels: three bytes each, row by row from the top.
    """
    size = 3 * width
    rows = b"".join(b"\0" + pixels[at : at + size] for at in range(0, size * height, size))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
