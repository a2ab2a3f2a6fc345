"""Plots as files and as parts of a page: one look, colours that a page can change.

A plot is drawn in fixed colours. In the SVG of a page each of them is replaced by a CSS variable,
so that the page's light and dark both fit; in files they stay.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.2
"""Inches; a third of a page on a desk, the whole of a telephone's: about as wide on both."""

PNG_DPI = 220

SMALL = 7.5
"""Points of the labels in a plot."""

TITLE = "plot-title"
TITLE_INCHES = 0.26
"""What the title takes at the top; on a page it is a heading of the page."""

_ID = re.compile(r'((?:\bid="|url\(#|href="#))([^")]+)')
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"'DejaVu Sans'(?:, [\w' -]+)*")
_VIEW = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')

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

STYLE: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9,
    "text.parse_math": False, "text.usetex": False, "text.color": INK,
    "svg.fonttype": "none", "svg.hashsalt": "spark-cluster", "svg.image_inline": True,
    "axes.edgecolor": GRID, "axes.labelcolor": SOFT, "axes.titlecolor": INK,
    "axes.labelsize": 8.5, "axes.facecolor": PAPER, "axes.axisbelow": True,
    "axes.grid": True, "axes.grid.axis": "y", "axes.spines.top": False, "axes.spines.right": False,
    "axes.spines.left": False, "axes.unicode_minus": True, "axes.formatter.useoffset": False,
    "grid.color": GRID, "grid.linewidth": 0.7,
    "xtick.color": GRID, "xtick.labelcolor": SOFT, "xtick.labelsize": 8.5,
    "ytick.color": GRID, "ytick.labelcolor": SOFT, "ytick.labelsize": 8.5, "ytick.major.size": 0,
    "legend.frameon": False, "legend.fontsize": 8.5, "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2, "legend.borderaxespad": 0, "legend.handletextpad": 0.5,
    "lines.linewidth": 1.6, "lines.markersize": 5, "figure.facecolor": PAPER,
    "path.simplify": True, "errorbar.capsize": 2.5,
}  # fmt: skip


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
        panels: their heights, inches.
        top: inches above the first panel: the title and a line of the legend, unless it says less.
    """

    def __init__(
        self, name: str, title: str, panels: tuple[float, ...] = (2.3,), *, top: float = 0.62
    ) -> None:
        from matplotlib.figure import Figure

        self.name, self.title, self.note, self.description = name, title, "", ""
        bottom, between = 0.52, 0.42
        height = top + bottom + sum(panels) + between * (len(panels) - 1)
        self.height = height
        self.figure: Figure = Figure(figsize=(WIDTH, height))
        self.panels: list[Axes] = []
        at = height - top
        for panel in panels:
            at -= panel
            box = (0.56 / WIDTH, at / height, (WIDTH - 0.56 - 0.14) / WIDTH, panel / height)
            share = self.panels[0] if self.panels else None
            self.panels.append(self.figure.add_axes(box, sharex=share))
            at -= between

    @property
    def axes(self) -> Axes:
        """The first panel."""
        return self.panels[0]

    def legend(self) -> None:
        """Put the names of the lines above the first panel; none for a single line."""
        handles, names = self.axes.get_legend_handles_labels()
        labels = [clipped(name) for name in names]
        if len(handles) < 2:
            return
        columns = max(1, min(len(handles), 4, 46 // (max(map(len, labels)) + 5)))
        rows = -(-len(handles) // columns)
        if rows > 1:
            self._grow(0.17 * (rows - 1))
        self.figure.legend(
            handles, labels, loc="upper left", ncols=columns,
            bbox_to_anchor=(0.14 / WIDTH, 1 - 0.33 / self.height),
        )  # fmt: skip

    def _grow(self, inches: float) -> None:
        """Make room above the panels."""
        before, self.height = self.height, self.height + inches
        self.figure.set_size_inches(WIDTH, self.height)
        for axes in self.panels:
            box = axes.get_position()
            scale = before / self.height
            axes.set_position((box.x0, box.y0 * scale, box.width, box.height * scale))

    def finish(self) -> Plot:
        """Draw it."""
        self.figure.text(
            0.14 / WIDTH, 1 - 0.10 / self.height, clipped(self.title, 52), va="top",
            fontsize=10.5, fontweight="bold", gid=TITLE,
        )  # fmt: skip
        png, svg = io.BytesIO(), io.StringIO()
        self.figure.savefig(png, format="png", dpi=PNG_DPI)
        self.figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        text = svg.getvalue()
        inline = _inline(text, self.name, self.description or self.title)
        return Plot(self.name, self.title, self.note, inline, text, png.getvalue())


def _inline(svg: str, name: str, description: str) -> str:
    """The SVG as a part of a page: without its title, in the page's colours and font."""
    found = svg[svg.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
    found = re.sub(r"<style.*?</style>", "", found, flags=re.DOTALL)  # its `*` means the page too
    found = re.sub(rf'<g id="{TITLE}">.*?</g>', "", found, flags=re.DOTALL)
    found = _ID.sub(lambda m: f"{m[1]}{name}-{m[2]}", found)
    found = _COLOUR.sub(lambda m: f"var({VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], found)
    found = _FONT.sub("var(--font)", found)
    found = re.sub(r">\s+<", "><", found)
    width, height = (float(size) for size in _VIEW.search(found).groups())  # type: ignore[union-attr]
    top = 72 * TITLE_INCHES
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 {top:g} {width:g} {height - top:g}" role="img" '
        f'aria-label="{html.escape(description)}">'
    )
    return opening + found[found.index(">") + 1 :]


@contextmanager
def style() -> Iterator[None]:
    """Draw in the look of reports; nothing of it stays."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
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
