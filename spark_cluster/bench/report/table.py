"""A table, and its form in Markdown, as people post it in forums."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_ESCAPED = re.compile(r"[\\|<>\[\]`*]")


@dataclass(frozen=True)
class Table:
    """A table of plain text.

    Attributes:
        left: columns that are text; the others are figures, aligned to the right.
        marked: rows to look at, by index, with `bad` or `attention`.
        note: a line below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)
    marked: dict[int, str] = field(default_factory=dict)
    note: str = ""

    def without_empty_columns(self) -> Table:
        """The same without the columns in which no row has anything."""
        return self._only([i for i in range(len(self.columns)) if any(r[i] for r in self.rows)])

    def without(self, column: str) -> Table:
        """The same without a column; what it says is said elsewhere."""
        return self._only([i for i, name in enumerate(self.columns) if name != column])

    def _only(self, kept: list[int]) -> Table:
        return Table(
            self.title,
            tuple(self.columns[i] for i in kept),
            tuple(tuple(row[i] for i in kept) for row in self.rows),
            tuple(new for new, old in enumerate(kept) if old in self.left),
            self.marked,
            self.note,
        )

    def markdown(self) -> str:
        """The table in GitHub's Markdown, columns padded so that it is readable as it is."""
        cells = [[escape(text) for text in row] for row in (self.columns, *self.rows)]
        widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(self.columns))]
        rule = [
            "-" * width if i in self.left else "-" * (width - 1) + ":"
            for i, width in enumerate(widths)
        ]
        return "\n".join(_row(row, widths, self.left) for row in [cells[0], rule, *cells[1:]])


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no cell ended, no HTML, no link, no picture.

    >>> escape("a|b\\n<img>")
    'a\\\\|b &lt;img&gt;'
    """
    flat = " ".join(text.split()).replace("&", "&amp;")
    return _ESCAPED.sub(lambda m: {"<": "&lt;", ">": "&gt;"}.get(m[0], f"\\{m[0]}"), flat)


def fenced(text: str, language: str = "") -> str:
    """A block of code that its own text cannot end."""
    runs = re.findall(r"`{3,}", text)
    fence = "`" * max([3, *(len(run) + 1 for run in runs)])
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _row(cells: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if i in left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"
