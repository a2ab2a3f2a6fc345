"""The output of a command in bounded memory: the begin and the end of it, or its lines."""

from __future__ import annotations

from collections.abc import Callable

OUTPUT_LIMIT = 8 * 1024 * 1024
"""Bytes of one output that are kept; of more, the first half and the last half of so much."""

LINE_LIMIT = 64 * 1024
"""Bytes after which a line is passed on although its end has not come."""

TEXT_LIMIT = OUTPUT_LIMIT
"""Bytes of a file that are read to be sent."""


class Kept:
    """An output stream; `left_out` bytes of its middle are not kept."""

    def __init__(self, limit: int = 0) -> None:
        self._half = (limit or OUTPUT_LIMIT) // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    @property
    def left_out(self) -> int:
        """Bytes that are not kept."""
        return max(0, self._seen - 2 * self._half)

    def text(self) -> str:
        """Return what is kept, with a line in place of what is not."""
        if not self.left_out:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = bytes(self._head), bytes(self._tail[-self._half :])
        return "".join(
            (head.decode(errors="replace"), _gap(self.left_out), tail.decode(errors="replace"))
        )


def shortened(text: str, limit: int = OUTPUT_LIMIT, *, first: float = 0.5) -> str:
    """Return the text, or of a longer one its begin and its end.

    Args:
        limit: characters that are kept.
        first: share of them that is kept of the begin.
    """
    if len(text) <= limit:
        return text
    begin = int(limit * first)
    left_out = len(text) - limit
    return text[:begin] + _gap(left_out) + text[begin + left_out :]


class Lines:
    """The splitting of an output into lines, each passed on as it comes."""

    def __init__(self, on_output: Callable[[str], None]) -> None:
        self._on_output = on_output
        self._rest = b""

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._on_output(line.decode(errors="replace").rstrip())

    def end(self) -> None:
        """Tell the last line, which no line end followed."""
        if self._rest:
            self._on_output(self._rest.decode(errors="replace").rstrip())
            self._rest = b""


def _gap(size: int) -> str:
    return f"\n[... {gigabytes(size)} left out: the output is too long to be kept whole ...]\n"


def gigabytes(size: float) -> str:
    """Return a number of bytes as people read it.

    >>> gigabytes(141.2e9), gigabytes(1234567890), gigabytes(1500), gigabytes(0)
    ('141 GB', '1.2 GB', '1.5 kB', '0 B')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 image` and `2 images`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a span in one unit, as an estimate deserves: `45 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def elapsed(seconds: float) -> str:
    """Return a span in two units, as a clock deserves: `45 s`, `1 min 15 s`, `1 h 23 min`, `2 h`.

    Hours are followed by whole minutes; a second unit that is 0 is left out.
    """
    minutes, rest = divmod(max(0, round(seconds)), 60)
    if minutes < 60:
        units = (minutes, "min"), (rest, "s")
    else:
        units = (minutes // 60, "h"), (minutes % 60, "min")
    return " ".join(f"{number:,} {unit}" for number, unit in units if number) or "0 s"
