"""Plots of the nodes: GPU memory by phase, and telemetry over time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.drawing import SMALL, SOFT, Canvas, Plot, clipped, colour
from spark_cluster.bench.report.formats import elapsed
from spark_cluster.bench.report.setup_tables import PHASES, readings
from spark_cluster.bench.report.telemetry import Telemetry, from_datetime, thin_out
from spark_cluster.facts.gpu_load import SLOW_MHZ

if TYPE_CHECKING:
    from spark_cluster.bench.report.telemetry import Floats

MAX_PANELS = 4


@dataclass(frozen=True)
class Panel:
    """A quantity over time.

    Attributes:
        columns: of the telemetry, solid first, then dashed, with what each is called.
        scale: from the column's unit to that of the plot.
        limit: a value at which a line is drawn.
    """

    name: str
    title: str
    unit: str
    columns: tuple[tuple[str, str], ...]
    scale: float = 1
    limit: float | None = None
    note: str = ""


PANELS = (
    Panel("clocks", "SM clock", "MHz", (("sm_clock_mhz", ""),), limit=SLOW_MHZ,
          note=f"Dotted: {SLOW_MHZ / 1000:g} GHz, below which a cell is flagged."),
    Panel("power", "Power", "W", (("power_w", ""),)),
    Panel("temperature", "Temperature", "°C", (("temperature_c", ""),)),
    Panel("memory", "Memory", "GiB",
          (("gpu_mem_mib", "GPU processes"), ("mem_available_mib", "available")), 1 / 1024),
    Panel("swap", "Swap in use", "GiB", (("swap_used_mib", ""),), 1 / 1024),
    Panel("link", "Link traffic (RDMA)", "GB/s",
          (("rdma_rx_bytes_s", "in"), ("rdma_tx_bytes_s", "out")), 1e-9),
    Panel("network", "Network traffic (TCP/IP)", "MB/s",
          (("net_rx_bytes_s", "in"), ("net_tx_bytes_s", "out")), 1e-6),
    Panel("requests", "Requests", "requests", (("running", "running"), ("waiting", "waiting"))),
    Panel("kv-usage", "KV cache in use", "%", (("kv_usage", ""),), 100),
    Panel("acceptance", "Acceptance of drafts", "%", (("acceptance", ""),), 100),
)  # fmt: skip


@dataclass(frozen=True)
class Window:
    """The time that a plot is about.

    Attributes:
        start, end: seconds since 1970.
    """

    start: float
    end: float

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of its axis, and how many seconds that is."""
        return ("h", 3600) if self.end - self.start > 3 * 3600 else ("min", 60)

    def at(self, seconds: Floats) -> Floats:
        """Return the places of moments on the axis."""
        return (seconds - self.start) / self.unit[1]

    @property
    def width(self) -> float:
        """The length of the axis, in its unit."""
        return max((self.end - self.start) / self.unit[1], 1e-3)


@dataclass(frozen=True)
class Span:
    """A period in which a setup was under load, seconds since 1970."""

    label: str
    start: float
    end: float


def vram_plot(results: Results) -> Iterator[Plot]:
    """Yield GPU memory of each node, phase by phase; a panel for each setup."""
    setups = [setup for setup in results.record.setups if setup.vram][:MAX_PANELS]
    if not setups:
        return
    nodes = list(dict.fromkeys(r.node for setup in setups for r in setup.vram))[:8]
    heights = (1.35 if len(setups) > 1 else 2.2,) * len(setups)
    canvas = Canvas("vram", "GPU memory by phase, GiB", heights, top=0.8)
    width = 0.8 / len(nodes)
    highest = max(r.used_mib for setup in setups for r in setup.vram) / 1024
    for axes, setup in zip(canvas.panels, setups, strict=True):
        for index, (node, phases) in enumerate((node, readings(setup)[node]) for node in nodes):
            left = (index - (len(nodes) - 1) / 2) * width
            places = [place + left for place in range(len(PHASES))]
            used = [phases[p].used_mib / 1024 if p in phases else math.nan for p in PHASES]
            bars = axes.bar(places, used, width * 0.94, color=colour(index), label=node)
            axes.bar_label(bars, fmt=_whole, padding=2, fontsize=SMALL)
        axes.set_ylim(0, max(1.0, highest * 1.18))
        axes.set_title(clipped(results.labels[setup.id]), fontsize=8.5, loc="left", pad=3)
        axes.tick_params(labelbottom=axes is canvas.panels[-1])
    canvas.panels[-1].set_xticks(range(len(PHASES)), [phase.replace("_", " ") for phase in PHASES])
    canvas.legend()
    canvas.note = "Held by GPU processes, as nvidia-smi --query-compute-apps lists them."
    canvas.description = f"{canvas.title}. The table below has the figures."
    yield canvas.finish()


def _whole(gib: float) -> str:
    return "" if math.isnan(gib) else f"{gib:.0f}"


def telemetry_plots(results: Results, telemetry: Telemetry | None) -> Iterator[Plot]:
    """Yield each quantity of the nodes over time that was recorded, the setups shaded."""
    sampled = [node for node in telemetry.nodes if len(node.seconds)] if telemetry else []
    if telemetry is None or not sampled:
        return
    window = Window(
        min(float(node.seconds[0]) for node in sampled),
        max(float(node.seconds[-1]) for node in sampled),
    )
    spans = phases(results, window)
    for panel in PANELS:
        wanted = tuple(column for column, _ in panel.columns)
        if telemetry.has(*wanted) and not (panel.name == "swap" and _all_zero(telemetry)):
            yield _over_time(panel, telemetry, spans, window)


def phases(results: Results, window: Window) -> list[Span]:
    """Return the period of each setup: from its first cell's start to its last one's end."""
    found = []
    for setup in results.setups:
        cells = [cell for cell in results.record.cells if cell.setup == setup.id]
        begun = [from_datetime(cell.started) for cell in cells if cell.started]
        done = [from_datetime(cell.finished) for cell in cells if cell.finished]
        if begun and done and window.start < max(done) and min(begun) < window.end:
            start, end = max(window.start, min(begun)), min(window.end, max(done))
            found.append(Span(results.labels[setup.id], start, end))
    return found


def _over_time(panel: Panel, telemetry: Telemetry, spans: list[Span], window: Window) -> Plot:
    canvas = Canvas(panel.name, f"{panel.title} over time", (1.9,))
    axes = canvas.axes
    for index, node in enumerate(telemetry.nodes):
        for part, (column, _) in enumerate(panel.columns):
            if column not in node.values or not (line := thin_out(node, column))[0].size:
                continue
            x, y = line
            axes.plot(
                window.at(x), y * panel.scale, color=colour(index), linewidth=1, alpha=0.85,
                linestyle="-" if part == 0 else (0, (3, 1.5)),
                label=clipped(node.node, 24) if part == 0 else "_",
            )  # fmt: skip
    if panel.limit is not None:
        axes.axhline(panel.limit, color=SOFT, linewidth=0.9, linestyle=":")
    axes.set_ylim(0, max(axes.get_ylim()[1], panel.limit or 0) * 1.14 or 1)
    axes.set_xlim(0, window.width)
    for number, span in enumerate(spans):
        _shade(canvas, number, span, window)
    axes.set_xlabel(f"{window.unit[0]} since the start of telemetry")
    axes.set_ylabel(panel.unit)
    canvas.legend()
    canvas.note = panel.note or _parts(panel)
    shown = ", ".join(span.label for span in spans)
    took = elapsed(window.end - window.start)
    canvas.description = f"{panel.title} of each node over {took}, under load: {shown}"
    return canvas.finish()


def _parts(panel: Panel) -> str:
    names = [name for _, name in panel.columns]
    return f"Solid: {names[0]}, dashed: {names[1]}." if len(names) > 1 else ""


def _shade(canvas: Canvas, index: int, span: Span, window: Window) -> None:
    left, right = ((at - window.start) / window.unit[1] for at in (span.start, span.end))
    tint = 0.09 if index % 2 else 0.05
    canvas.axes.axvspan(left, right, color=SOFT, alpha=tint, linewidth=0, zorder=0)
    room = int((right - left) / window.width * 56)
    if room >= 4:
        canvas.axes.text(
            (left + right) / 2, 0.985, clipped(span.label, room), ha="center", va="top",
            transform=canvas.axes.get_xaxis_transform(), fontsize=SMALL, color=SOFT,
        )  # fmt: skip


def _all_zero(telemetry: Telemetry) -> bool:
    import numpy as np

    return all(
        not np.nan_to_num(node.values["swap_used_mib"]).any()
        for node in telemetry.nodes
        if "swap_used_mib" in node.values
    )
