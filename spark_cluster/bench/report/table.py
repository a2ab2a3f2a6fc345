"""A table, declared once for the page, the post and the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_ESCAPED = re.compile(r"[\\|<>\[\]`*]")

MARK = "(mark)"
"""Key of a row of `tabulate` with its mark."""

TEXT_COLUMNS = frozenset({
    "", "cell", "figure", "found", "kind", "load", "model", "node", "process", "question", "setup",
    "streamed", "test", "value", "verdict", "why", "why not",
})  # fmt: skip
"""Columns of text, aligned to the left; the others are figures, aligned to the right."""


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

    def without(self, *columns: str) -> Table:
        """The same without some columns; what they say is said elsewhere."""
        kept = [i for i, name in enumerate(self.columns) if name not in columns]
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
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        rules = [
            f"{'-' * (width - 1)}{'-' if i in self.left else ':'}" for i, width in enumerate(widths)
        ]
        lines = [_row(row, widths, self.left) for row in cells]
        return "\n".join([lines[0], _row(rules, widths, self.left), *lines[1:]])


def tabulate(title: str, rows: Iterable[Mapping[str, str]], note: str = "") -> Table:
    """Return a table of rows, each a column's name to its text, and `MARK` to the row's mark.

    Columns in which no row has anything are left out.
    """
    found = list(rows)
    used = (name for row in found for name, text in row.items() if text and name != MARK)
    order = [name for name in (found[0] if found else ()) if name != MARK]
    filled = set(used)
    columns = tuple(name for name in order if name in filled)
    return Table(
        title,
        columns,
        tuple(tuple(row[name] for name in columns) for row in found),
        tuple(i for i, name in enumerate(columns) if name in TEXT_COLUMNS),
        {i: row[MARK] for i, row in enumerate(found) if row.get(MARK)},
        note if found else "",
    )


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
