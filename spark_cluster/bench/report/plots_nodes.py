"""Plots of the nodes: GPU memory by phase, and telemetry over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.drawing import SMALL, SOFT, Plot, PlotCanvas, clipped, colour
from spark_cluster.bench.report.formats import elapsed
from spark_cluster.bench.report.setup_tables import PHASES, readings
from spark_cluster.bench.run_folder import printable
from spark_cluster.config.facts import SLOW_MHZ
from spark_cluster.errors import InvalidFile, UsageError, install_extra

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    F = TypeVar("F", float, Floats)


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
class TimeAxis:
    """The time that a plot is about.

    Attributes:
        start: seconds since 1970.
        unit, seconds: of the axis, and how many seconds that is.
        width: of the axis, in its unit.
    """

    start: float
    unit: str
    seconds: float
    width: float

    def at(self, moment: F) -> F:
        """Return the places of moments on the axis."""
        return (moment - self.start) / self.seconds


Span = tuple[str, float, float]
"""The label of a setup, and the places on the axis between which it was under load."""


def vram_plot(results: Results) -> Iterator[Plot]:
    """Yield GPU memory of each node, phase by phase; a panel for each setup."""
    setups = [setup for setup in results.record.setups if setup.vram][:MAX_PANELS]
    if not setups:
        return
    nodes = list(dict.fromkeys(r.node for setup in setups for r in setup.vram))[:8]
    heights = (1.35 if len(setups) > 1 else 2.2,) * len(setups)
    canvas = PlotCanvas("vram", "GPU memory by phase, GiB", heights, top=0.8)
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


def telemetry_plots(results: Results, nodes: Sequence[NodeTelemetry]) -> Iterator[Plot]:
    """Yield each quantity of the nodes over time that was recorded, the setups shaded."""
    sampled = [node for node in nodes if len(node.seconds)]
    if not sampled:
        return
    start = min(float(node.seconds[0]) for node in sampled)
    length = max(float(node.seconds[-1]) for node in sampled) - start
    unit, seconds = ("h", 3600) if length > 3 * 3600 else ("min", 60)
    axis = TimeAxis(start, unit, seconds, max(length / seconds, 1e-3))
    spans = list(_under_load(results, axis))
    during = f"over {elapsed(length)}, under load: {', '.join(label for label, _, _ in spans)}"
    for panel in PANELS:
        lines = [
            (index, part, *thin_out(node, column))
            for index, node in enumerate(nodes)
            for part, (column, _) in enumerate(panel.columns)
            if column in node.values
        ]
        is_unused = panel.name == "swap" and not any((y > 0).any() for _, _, _, y in lines)
        if is_unused or not any(x.size for _, _, x, _ in lines):
            continue
        canvas = PlotCanvas(panel.name, f"{panel.title} over time", (1.9,))
        for index, part, x, y in lines:
            if x.size:
                canvas.axes.plot(
                    axis.at(x), y * panel.scale, color=colour(index), linewidth=1, alpha=0.85,
                    linestyle="-" if part == 0 else (0, (3, 1.5)),
                    label=clipped(nodes[index].node, 24) if part == 0 else "_",
                )  # fmt: skip
        canvas.description = f"{panel.title} of each node {during}"
        yield _finished(canvas, panel, spans, axis)


def _finished(canvas: PlotCanvas, panel: Panel, spans: Sequence[Span], axis: TimeAxis) -> Plot:
    axes = canvas.axes
    if panel.limit is not None:
        axes.axhline(panel.limit, color=SOFT, linewidth=0.9, linestyle=":")
    axes.set_ylim(0, max(axes.get_ylim()[1], panel.limit or 0) * 1.14 or 1)
    axes.set_xlim(0, axis.width)
    for number, (label, left, right) in enumerate(spans):
        tint = 0.09 if number % 2 else 0.05
        axes.axvspan(left, right, color=SOFT, alpha=tint, linewidth=0, zorder=0)
        room = int((right - left) / axis.width * 56)
        if room >= 4:
            axes.text(
                (left + right) / 2, 0.985, clipped(label, room), ha="center", va="top",
                transform=axes.get_xaxis_transform(), fontsize=SMALL, color=SOFT,
            )  # fmt: skip
    axes.set_xlabel(f"{axis.unit} since the start of telemetry")
    axes.set_ylabel(panel.unit)
    canvas.legend()
    names = [name for _, name in panel.columns]
    parts = f"Solid: {names[0]}, dashed: {names[1]}." if len(names) > 1 else ""
    canvas.note = panel.note or parts
    return canvas.finish()


def _under_load(results: Results, axis: TimeAxis) -> Iterator[Span]:
    """Yield the period of each setup: from its first cell's start to its last one's end."""
    for setup in results.setups:
        cells = [cell for cell in results.record.cells if cell.setup == setup.id]
        begun = [axis.at(from_datetime(cell.started)) for cell in cells if cell.started]
        done = [axis.at(from_datetime(cell.finished)) for cell in cells if cell.finished]
        if begun and done and max(done) > 0 and min(begun) < axis.width:
            yield results.labels[setup.id], max(0.0, min(begun)), min(axis.width, max(done))


# Telemetry of a run: read from Parquet, and thinned out for plots without losing an extreme.

NUMBERS = (
    "sm_clock_mhz", "power_w", "temperature_c", "mem_available_mib", "swap_used_mib",
    "gpu_mem_mib", "rdma_rx_bytes_s", "rdma_tx_bytes_s", "net_rx_bytes_s", "net_tx_bytes_s",
    "running", "waiting", "kv_usage", "acceptance",
)  # fmt: skip
"""Columns that are plotted; a file may lack any of them, and any value may be null."""

BUCKETS = 300
"""Buckets of a plot, two points each: more than a plot of half a page has pixels to show."""

GAP = 10.0
"""Seconds without a sample after which a line is interrupted: samples come once a second."""

MAX_ROWS = 20_000_000
"""Eight nodes at one sample a second for a month."""

MAX_NODES = 16


@dataclass(frozen=True)
class NodeTelemetry:
    """The samples of one node, in the order of time.

    Attributes:
        seconds: since 1970, UTC.
        values: by column; not a number where a value is missing.
    """

    node: str
    seconds: Floats
    values: dict[str, Floats]


def read_telemetry(path: Path) -> list[NodeTelemetry]:
    """Read the telemetry of a run; none where there is no such file.

    Raises:
        InvalidFile: it is no Parquet, or lacks time or node.
        UsageError: pyarrow is not installed.
    """
    if not path.is_file():
        return []
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(
            f"reading telemetry needs {error.name}", hint=install_extra("bench")
        ) from None
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_ROWS:
                raise InvalidFile(f"{file.metadata.num_rows:,} rows are too many", where=str(path))
            present = set(file.schema_arrow.names)
            if missing := {"time", "node"} - present:
                raise InvalidFile(f"no column {' or '.join(sorted(missing))}", where=str(path))
            table = file.read(["time", "node", *(name for name in NUMBERS if name in present)])
        return _by_node(table)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidFile(f"not telemetry in Parquet: {reason}", where=str(path)) from None


def thin_out(node: NodeTelemetry, column: str, buckets: int = BUCKETS) -> tuple[Floats, Floats]:
    """Keep the lowest and the highest value of each bucket of time, and the gaps.

    Returns:
        Times and values, at most three for each bucket; not a number ends a line.
    """
    import numpy as np

    kept = np.isfinite(node.values[column])
    seconds, values = node.seconds[kept], node.values[column][kept]
    gaps = np.flatnonzero(np.diff(seconds) > GAP)[: buckets // 4]
    chosen = np.arange(len(seconds))
    if len(seconds) > 2 * buckets:
        span = seconds[-1] - seconds[0] or 1.0
        bucket = np.minimum((seconds - seconds[0]) / span * buckets, buckets - 1).astype(int)
        starts = np.flatnonzero(np.diff(bucket, prepend=-1))
        ends = np.append(starts[1:], len(bucket)) - 1
        by_value = np.lexsort((values, bucket))  # the lowest of a bucket comes first in it
        chosen = np.unique(np.concatenate([by_value[starts], by_value[ends], gaps, gaps + 1]))
    after_gap = np.searchsorted(chosen, gaps + 1)
    return (
        np.insert(seconds[chosen], after_gap, np.nan),
        np.insert(values[chosen], after_gap, np.nan),
    )


def from_datetime(time: datetime) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _by_node(table: pa.Table) -> list[NodeTelemetry]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    times = table["time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    seconds = times.to_numpy().astype(np.float64) / 1e6
    columns = {
        name: table[name].cast(pa.float64(), safe=False).to_numpy()
        for name in table.column_names
        if name in NUMBERS
    }
    names = table["node"].cast(pa.string())
    found = []
    for name in sorted(filter(None, pc.unique(names).to_pylist()))[:MAX_NODES]:
        rows = np.flatnonzero(pc.equal(names, name).fill_null(False).to_numpy())
        rows = rows[np.isfinite(seconds[rows])]
        rows = rows[np.argsort(seconds[rows], kind="stable")]
        values = {column: _bounded(data[rows]) for column, data in columns.items()}
        found.append(NodeTelemetry(printable(name), seconds[rows], values))
    return found


def _bounded(values: Floats) -> Floats:
    """Not a number instead of what no sensor reports, which would stretch an axis to nothing."""
    import numpy as np

    return np.where(np.abs(values) < 1e15, values, np.nan)
