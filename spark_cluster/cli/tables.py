"""Tables that fit their terminal: a column that would break words goes below its row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table

NARROWEST = 12
"""Cells that a column of text has at least, unless its longest value needs less."""

BELOW = 4
"""Cells by which a value below its row is indented."""


class FittedTable(Table):
    """A table in which no word is broken and nothing is cut.

    Columns take the width that they need. Where that is more than there is, texts are wrapped; and
    where a word would have to be broken, the last column of text goes below each row, with its
    title.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ranges = [_range(console, options, column) for column in self.columns]
        gap = sum(Padding.unpack(self.padding)[1::2])
        kept, below = list(range(len(self.columns))), list[int]()

        def needed(sizes: Sequence[int]) -> int:
            return sum(sizes) + gap * (len(sizes) - 1)

        while needed([ranges[i].minimum for i in kept]) > options.max_width:
            texts = [i for i in kept[1:] if _is_text(self.columns[i])]
            if not texts:
                break
            kept.remove(texts[-1])
            below.insert(0, texts[-1])
        spare = options.max_width - needed([ranges[i].minimum for i in kept])
        for index, width in zip(kept, _widths([ranges[i] for i in kept], spare), strict=True):
            self.columns[index].width = width
        if not below:
            yield from super().__rich_console__(console, _with(options, gap))
            return
        rows = list(zip(*(column.cells for column in self.columns), strict=True))
        for number, row in enumerate(rows):
            one = self._of([self.columns[i] for i in kept], [row[i] for i in kept], number == 0)
            yield from one.__rich_console__(console, _with(options, gap))
            for index in below:
                yield from _below(self.columns[index] if self.show_header else None, row[index])

    def _of(self, columns: list[Column], cells: list[RenderableType], first: bool) -> Table:
        """Return one row as a table; the first one has the titles."""
        found = Table(
            *(column.copy() for column in columns),
            box=None,
            pad_edge=False,
            padding=self.padding,
            header_style=self.header_style,
            show_header=first and self.show_header,
        )
        found.add_row(*cells)
        return found


def _with(options: ConsoleOptions, gap: int) -> ConsoleOptions:
    """Return options with room for the padding that rich counts after the last column."""
    return options.update(max_width=options.max_width + gap)


def _is_text(column: Column) -> bool:
    return column.justify == "left" and not column.no_wrap


def _range(console: Console, options: ConsoleOptions, column: Column) -> Measurement:
    """Return the least and the greatest width of a column, in cells."""
    wide = options.update(width=10_000)
    cells = [Measurement.get(console, wide, cell) for cell in column.cells]
    title = Measurement.get(console, wide, column.header)
    most = max([cell.maximum for cell in cells], default=0)
    if column.no_wrap:
        most = max(most, title.maximum)
        return Measurement(most, most)
    if not _is_text(column):
        return Measurement(max(most, title.minimum), max(most, title.maximum))
    # A word that is longer than the line is broken wherever it stands.
    room = options.max_width - BELOW
    least = max([cell.minimum for cell in cells if cell.minimum <= room], default=0)
    greatest = max(most, title.maximum)
    return Measurement(max(least, title.minimum, min(NARROWEST, greatest)), greatest)


def _widths(ranges: list[Measurement], spare: int) -> list[int]:
    """Return each column's width; those that want least of what is spare get it first."""
    found = [one.minimum for one in ranges]
    if spare < 0:  # nothing is left to put below: the widest is folded
        widest = found.index(max(found))
        found[widest] = max(1, found[widest] + spare)
        return found
    wants = sorted((one.maximum - one.minimum, index) for index, one in enumerate(ranges))
    for done, (want, index) in enumerate(wants):
        given = min(want, spare // (len(wants) - done))
        found[index] += given
        spare -= given
    return found


def _below(column: Column | None, cell: RenderableType) -> RenderResult:
    """A value below its row, next to its title where it has one."""
    if not str(cell).strip():
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    title = "" if column is None else str(column.header)
    if title:
        table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(*([title] if title else []), cell)
    yield Padding(table, (0, 0, 0, BELOW), expand=False)
