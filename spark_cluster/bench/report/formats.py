"""The form of figures and texts of a run: the same on the page, in the tables and in the plots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from spark_cluster.bench.record import CellKey, Metric, MetricName


def number(value: float) -> str:
    """A figure with as many digits as it deserves.

    >>> number(6.93), number(1466.99), number(0.7612), number(22669.4)
    ('6.93', '1,467', '0.76', '22,669')
    """
    size = abs(value)
    if size >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.2f}"


def spread(metric: Metric | None) -> str:
    """Mean and standard deviation, as llama-benchy prints them; empty for none."""
    if metric is None:
        return ""
    return f"{metric.mean:.2f}" + ("" if metric.std is None else f" ± {metric.std:.2f}")


def figure(metric: Metric) -> str:
    """Mean and standard deviation with as many decimals as the mean deserves."""
    mean = number(metric.mean)
    if metric.std is None or abs(metric.mean) >= 1e9:
        return mean
    return f"{mean} ± {metric.std:,.{len(mean.partition('.')[2])}f}"


def amount(name: MetricName, metric: Metric) -> str:
    """A figure, or a time to wait where the metric is one."""
    return duration(metric.mean) if name.endswith("_ms") else figure(metric)


def duration(milliseconds: float) -> str:
    """A time to wait, in ms below ten seconds.

    >>> duration(906.2), duration(22669)
    ('906 ms', '22.7 s')
    """
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"


def elapsed(seconds: float) -> str:
    """A long time.

    >>> elapsed(75), elapsed(5025)
    ('1 min 15 s', '1 h 23 min')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def factor(value: float) -> str:
    """A ratio, such as 1.72×."""
    return f"{value:.2f}×"


def gib(mib: float) -> str:
    """Memory in GiB."""
    return f"{mib / 1024:.1f} GiB"


def tokens(count: int) -> str:
    """A length of context on an axis.

    >>> tokens(0), tokens(4096), tokens(65535), tokens(100000), tokens(500)
    ('0', '4k', '64k', '98k', '500')
    """
    return str(count) if count < 1024 else f"{count / 1024:.0f}k"


def moment(time: datetime | None) -> str:
    """Date and time in UTC; empty for none."""
    if time is None:
        return ""
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def prefill_name(key: CellKey, *, concurrency: bool) -> str:
    """The name of a cell's prefill in llama-benchy's tables, such as `pp2048 @ d4096 (c2)`."""
    return ("ctx_pp" if key.context_prefill else f"pp{key.prompt}") + _suffix(key, concurrency)


def decode_name(key: CellKey, *, concurrency: bool) -> str:
    """The name of a cell's decoding in llama-benchy's tables, such as `tg128 @ d4096 (c2)`."""
    return ("ctx_tg" if key.context_prefill else f"tg{key.output}") + _suffix(key, concurrency)


def shape(key: CellKey) -> str:
    """The whole shape of a load in words of the field."""
    load = f"{key.request_rate:g} req/s" if key.request_rate is not None else f"c={key.concurrency}"
    if key.kind != "load":
        return f"{key.kind.replace('_', ' ')} questions"
    prefill = "ctx " if key.context_prefill else ""
    return f"{prefill}pp{key.prompt} tg{key.output} d={key.depth} {load}"


def predicted(metric: MetricName, key: CellKey) -> str:
    """The name of a predicted figure, such as `decode 8k c=2`."""
    name = {"tg_tps": "decode", "pp_tps": "prefill", "ttfr_ms": "ttfr"}.get(metric, metric)
    depth = f" {tokens(key.depth)}" if key.depth else ""
    return f"{name}{depth}" + (f" c={key.concurrency}" if key.concurrency > 1 else "")


def file_name(text: str) -> str:
    """A part of a path made of foreign text: it names one file in one folder, on any system.

    >>> file_name("../../etc/passwd"), file_name("tp1")
    ('etc-passwd', 'tp1')
    """
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip(".-")[:80] or "unnamed"


def _suffix(key: CellKey, concurrency: bool) -> str:
    depth = f" @ d{key.depth}" if key.depth or key.context_prefill else ""
    return depth + (f" (c{key.concurrency})" if concurrency else "")


def short(text: str, limit: int = 200) -> str:
    """The text on one line, cut where it is too long for a table."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


# A table, declared once for the page, the post and the terminal.

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


def fenced(text: str) -> str:
    """A block of a shell's code that its own text cannot end."""
    runs = re.findall(r"`{3,}", text)
    fence = "`" * max([3, *(len(run) + 1 for run in runs)])
    return f"{fence}sh\n{text.rstrip()}\n{fence}"


def _row(cells: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if i in left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"
