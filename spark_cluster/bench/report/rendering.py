"""The form of figures and texts of a run: the same on the page, in the tables and in the plots."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.bench.record import CellKey, Metric, MetricName
from spark_cluster.engine.vram import MemoryRecord
from spark_cluster.errors import Failed, UsageError, install_extra, naming
from spark_cluster.node.durable import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def number(value: float) -> str:
    """A figure with as many digits as it deserves.

    >>> number(6.93), number(1466.99), number(0.7612), number(22669.4)
    ('6.93', '1,467', '0.76', '22,669')
    """
    size = abs(value)
    if size >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.2f}"


def figure(metric: Metric | None) -> str:
    """Mean and standard deviation with as many decimals as the mean deserves; empty for none."""
    if metric is None:
        return ""
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


def factor(value: float) -> str:
    """A ratio, such as 1.72×."""
    return f"{value:.2f}×"


def gib(mib: float) -> str:
    """Memory in GiB."""
    return f"{mib / 1024:.1f} GiB"


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it, such as `256 MiB`."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size:,} B"


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


def prefill_name(key: CellKey, concurrency: bool = False) -> str:
    """The name of a cell's prefill in llama-benchy's tables, such as `pp2048 @ d4096 (c2)`."""
    return ("ctx_pp" if key.context_prefill else f"pp{key.prompt}") + _suffix(key, concurrency)


def decode_name(key: CellKey, concurrency: bool = False) -> str:
    """The name of a cell's decoding in llama-benchy's tables, such as `tg128 @ d4096 (c2)`."""
    return ("ctx_tg" if key.context_prefill else f"tg{key.output}") + _suffix(key, concurrency)


def shape(key: CellKey) -> str:
    """The whole shape of a load in words of the field; without an output that is not known."""
    load = f"{key.request_rate:g} req/s" if key.request_rate is not None else f"c={key.concurrency}"
    if key.kind != "load":
        return f"{key.kind.replace('_', ' ')} questions"
    prefill = "ctx " if key.context_prefill else ""
    output = f" tg{key.output}" if key.output else ""
    return f"{prefill}pp{key.prompt}{output} d={key.depth} {load}"


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


# -- tables, declared once for the page, the post and the terminal ---------------------------------

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

    def without(self, *columns: str) -> Table:
        """The same without some columns; what they say is said elsewhere."""
        kept = [i for i, name in enumerate(self.columns) if name not in columns]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            left=tuple(new for new, old in enumerate(kept) if old in self.left),
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


# -- plots as files and as parts of a page ---------------------------------------------------------
#
# A plot is drawn in fixed colours. In the SVG of a page each of them is replaced by a CSS variable,
# so that the page's light and dark both fit; in files they stay.

WIDTH = 4.2
"""Inches; a third of a page on a desk, the whole of a telephone's: about as wide on both."""

OUTSIDE = 0.48
"""Inches for the labels of a panel, and for the legend."""

TITLE_LINE = 0.25
"""Inches of a panel's title, above which the legend stands."""

PNG_DPI = 220

SMALL = 7.5
"""Points of the labels in a plot."""

_ID = re.compile(r'((?:\bid="|url\(#|href="#))([^")]+)')
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"'DejaVu Sans'(?:, [\w' -]+)*")
_OPENING = re.compile(r'^.*?<svg\b.*?(viewBox="[^"]+").*?>', re.DOTALL)

SERIES = (
    "#1f6fd0", "#c2570c", "#1b7f4b", "#7d4fc9", "#b8336a", "#0b7d84", "#8a6a00", "#5c6773",
)  # fmt: skip
"""Colours of lines on white; the page's `--s1` to `--s8`. Each has 4.5:1 or more against it."""

INK, SOFT, GRID, PAPER = "#16202b", "#56626f", "#dfe4ea", "#ffffff"
VARIABLES = {
    INK: "--ink", SOFT: "--soft", GRID: "--grid", PAPER: "--card",
    **{colour: f"--s{index + 1}" for index, colour in enumerate(SERIES)},
}  # fmt: skip

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")

STYLE = Path(__file__).parent / "templates" / "report.mplstyle"


@dataclass(frozen=True)
class Plot:
    """A plot that was drawn.

    Attributes:
        name: of its files.
        title: above it on the page; the files have it in the picture.
        note: a line below it.
        inline: SVG for a page, its colours CSS variables.
        svg, png: as files.
    """

    name: str
    title: str
    note: str
    inline: str
    svg: str
    png: bytes


class PlotCanvas:
    """A figure with one or more panels, one above another.

    Args:
        panels: their heights, inches; what labels take comes on top.
    """

    def __init__(self, name: str, title: str, panels: tuple[float, ...] = (2.3,)) -> None:
        from matplotlib.figure import Figure

        self.name, self.title, self.note, self.description = name, title, "", ""
        self.figure: Figure = Figure(figsize=(WIDTH, sum(panels) + OUTSIDE * (1 + len(panels))))
        # matplotlib places what a plot has, so that nothing is cut or overlaps.
        self.figure.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06, hspace=0.04)
        found = self.figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=panels)
        self.panels: list[Axes] = list(found[:, 0])
        for axes in self.panels:
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.yaxis.set_major_formatter("{x:,g}")

    @property
    def axes(self) -> Axes:
        """The first panel."""
        return self.panels[0]

    def legend(self, above: float = TITLE_LINE) -> None:
        """Put the names of the lines above the first panel's title; none for a single line.

        Args:
            above: inches of what stands between.
        """
        from matplotlib.transforms import ScaledTranslation

        handles, names = self.axes.get_legend_handles_labels()
        labels = [clipped(name) for name in names]
        if len(handles) < 2:
            return
        columns = max(1, min(len(handles), 4, 46 // (max(map(len, labels)) + 5)))
        place = self.axes.transAxes + ScaledTranslation(0, above, self.figure.dpi_scale_trans)
        anchor: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "bbox_transform": place}
        self.axes.legend(handles, labels, ncols=columns, **anchor)

    def finish(self) -> Plot:
        """Draw it: for a page without its title, which is a heading there."""
        inline = _inline(self._svg(), self.name, self.description or self.title)
        title = clipped(self.title, 52)
        self.figure.suptitle(title, x=0.03, ha="left", fontsize=10.5, fontweight="bold")
        png = io.BytesIO()
        self.figure.savefig(png, format="png", dpi=PNG_DPI)
        return Plot(self.name, self.title, self.note, inline, self._svg(), png.getvalue())

    def _svg(self) -> str:
        svg = io.StringIO()
        self.figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        return svg.getvalue()


def _inline(svg: str, name: str, description: str) -> str:
    """The SVG as a part of a page, in the page's colours and font."""
    found = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    found = re.sub(r"<style.*?</style>", "", found, flags=re.DOTALL)  # its `*` means the page too
    found = _ID.sub(lambda m: f"{m[1]}{name}-{m[2]}", found)
    found = _COLOUR.sub(lambda m: f"var({VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], found)
    found = re.sub(r">\s+<", "><", _FONT.sub("var(--font)", found))
    return _OPENING.sub(
        lambda m: (
            '<svg xmlns="http://www.w3.org/2000/svg" '
            f'xmlns:xlink="http://www.w3.org/1999/xlink" {m[1]} role="img" '
            f'aria-label="{html.escape(description)}">'
        ),
        found,
        count=1,
    )


@contextmanager
def style() -> Iterator[None]:
    """Draw in the look of reports; nothing of it stays.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise UsageError("plots need matplotlib", hint=install_extra("bench")) from None
    with matplotlib.rc_context(fname=STYLE):
        yield


def clipped(text: str, limit: int = 40) -> str:
    """A label short enough for a plot."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def colour(index: int) -> str:
    """The colour of a line."""
    return SERIES[index % len(SERIES)]


def line_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line: it can be told from others in grey too."""
    return {
        "color": colour(index), "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(SERIES) % len(DASHES)],
    }  # fmt: skip


# -- the plot of a command's memory: each node over time, its phases, what the plan predicted ------

FORMATS = (".svg", ".png")


def is_installed() -> bool:
    """Return whether plots can be drawn here."""
    return find_spec("matplotlib") is not None


def write_plot(record: MemoryRecord, path: Path) -> None:
    """Draw the memory of a run into a file, SVG or PNG by its name; an earlier one is replaced.

    Raises:
        UsageError: the name ends otherwise, or matplotlib is not installed.
        Failed: it cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"{path.name}: a plot is written as {' or '.join(FORMATS)}",
            hint="give the file one of these endings",
        )
    plot = memory_plot(record)
    data = plot.png if path.suffix.lower() == ".png" else plot.svg.encode()
    hint = "give another file, in a folder that exists"
    with naming(Failed, "the plot cannot be written", where=str(path), hint=hint):
        write_file(path, data)


def memory_plot(record: MemoryRecord) -> Plot:
    """Draw GPU memory and MemAvailable of each node of a run with readings."""
    first, last = record.readings[0].at, record.readings[-1].at
    unit, length = ("min", 60.0) if last - first > 180 else ("s", 1.0)
    end = max((last - first) / length * 1.04, 1.0)
    with style():
        canvas = PlotCanvas("memory", clipped(f"GPU memory: {record.command}", 48), (2.0, 1.2))
        held, available = canvas.panels
        for index, node in enumerate(record.nodes):
            own = [reading for reading in record.readings if reading.node == node]
            at = [*((r.at - first) / length for r in own), end]
            used, left = [r.used_mib / 1024 for r in own], [r.mem_available_mib / 1024 for r in own]
            for axes, values in ((held, used), (available, left)):
                axes.plot(
                    at, [*values, values[-1]], color=colour(index), drawstyle="steps-post",
                    label=clipped(node, 24),
                )  # fmt: skip
        for planned in sorted({event.ready_mib for event in record.planned}):
            held.axhline(
                planned / 1024, color=SOFT, linewidth=1.2, linestyle="--",
                label=f"planned: {planned / 1024:.1f}",
            )  # fmt: skip
        _phases(canvas, [(name, (at - first) / length) for name, at in record.spans()], end)
        held.set_ylim(bottom=0)
        held.set_title("held by GPU processes, GiB", pad=22)
        held.tick_params(labelbottom=False)
        available.set_ylim(bottom=0)
        available.set_title("MemAvailable, GiB")
        available.set_xlabel(unit)
        available.set_xlim(0, end)
        canvas.legend(above=0.5)
        canvas.description = f"{canvas.title}, of each node over {end:.0f} {unit}"
        return canvas.finish()


def _phases(canvas: PlotCanvas, spans: list[tuple[str, float]], end: float) -> None:
    """Draw a line where a phase begins, and its name above; names take turns in two rows."""
    held: Axes = canvas.panels[0]
    for number, (name, at) in enumerate(spans):
        for axes in canvas.panels:
            if number:
                axes.axvline(at, color=SOFT, linewidth=0.8, linestyle=(0, (1, 2)))
        at_right = at / end > 0.8
        held.annotate(
            name.replace("_", " "), (at / end, 1.0), xycoords="axes fraction",
            xytext=(2 if at_right else 0, 2 + 9 * (number % 2)), textcoords="offset points",
            fontsize=SMALL, color=SOFT, ha="right" if at_right else "left",
        )  # fmt: skip
