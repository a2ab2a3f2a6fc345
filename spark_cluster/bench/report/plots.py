"""Plots of what was measured: against depth and load, variants, predictions, nodes over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from spark_cluster.bench.record import Metric, MetricName, Setup, printable
from spark_cluster.bench.report.rendering import (
    GRID,
    INK,
    SMALL,
    SOFT,
    Plot,
    PlotCanvas,
    clipped,
    colour,
    line_style,
    number,
    predicted,
    tokens,
)
from spark_cluster.bench.report.results import PlotPoint, Results
from spark_cluster.bench.report.tables import DECLARED, PHASES, readings
from spark_cluster.config.facts import SLOW_MHZ
from spark_cluster.errors import InvalidFile, UsageError, install_extra
from spark_cluster.node.output import elapsed

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    F = TypeVar("F", float, Floats)


MAX_LINES = 8
MAX_PREDICTIONS = 24

Lines = Sequence[tuple[Setup, Sequence[PlotPoint]]]
"""The points of each setup that has some."""


def measured_plots(results: Results) -> Iterator[Plot]:
    """Yield the plots for which the run has figures."""
    yield from _against_depth(results, "decode-depth", "Decoding against depth (c=1)", "tg_tps")
    yield from _against_depth(results, "prefill-depth", "Prefill against depth (c=1)", "pp_tps")
    yield from _per_user(results)
    yield from _first_response(results)
    yield from _variants(results)


def _against_depth(results: Results, name: str, title: str, metric: MetricName) -> Iterator[Plot]:
    lines = [line for line in _lines(results, metric, concurrency=1) if len(line[1]) > 1]
    if not lines:
        return
    canvas = PlotCanvas(name, title)
    for index, (setup, points) in enumerate(lines):
        _line(canvas.axes, points, index, results.labels[setup.id])
    canvas.axes.set(title="tok/s", xlabel="tokens in the context before the prompt")
    _from_zero(canvas.axes)
    ticks = _ticks(lines)
    canvas.axes.set_xticks(ticks, [tokens(depth) for depth in ticks])
    yield _finished(canvas, results, lines, title)


def _per_user(results: Results) -> Iterator[Plot]:
    lines = [
        (setup, [point for point in points if _request(point) is not None])
        for setup, points in _lines(results, "tg_tps", depth=results.lowest_depth)
    ]
    lines = [(setup, points) for setup, points in lines if points]
    if all(len(points) < 2 for _, points in lines):
        return
    canvas = PlotCanvas("per-user-aggregate", "Per-user against aggregate speed")
    for index, (setup, points) in enumerate(lines):
        x = [point.metric.mean for point in points]
        y = [metric.mean for point in points if (metric := _request(point))]
        canvas.axes.plot(x, y, label=results.labels[setup.id], **line_style(index))
        for point, at in zip(points, zip(x, y, strict=True), strict=True):
            canvas.axes.annotate(
                f"c={point.x:g}", at, xytext=(0, 5 if index else -12), fontsize=SMALL,
                textcoords="offset points", ha="center", color=colour(index),
            )  # fmt: skip
    canvas.axes.set(xlabel="tok/s of all requests together", title="tok/s of one request")
    canvas.axes.set_xlim(left=0)
    _from_zero(canvas.axes, 1.12)
    note = "Up and to the right is better. c: requests at once."
    yield _finished(canvas, results, lines, "Speed of all requests together", note)


def _request(point: PlotPoint) -> Metric | None:
    alone = point.metric if point.x == 1 else None
    return point.cell.metrics.get("tg_tps_request", alone)


def _first_response(results: Results) -> Iterator[Plot]:
    lines = _lines(results, "ttfr_ms", depth=results.lowest_depth)
    if len({point.x for _, points in lines for point in points}) < 2:
        return
    canvas = PlotCanvas("ttfr-concurrency", "Time to first response against load")
    every = [point.metric for _, points in lines for point in points]
    spread = "Bars: standard deviation." if any(metric.std for metric in every) else ""
    if all({"p50", "p95"} <= metric.percentiles.keys() for metric in every):
        is_wide = any(metric.percentiles["p50"] < metric.percentiles["p95"] for metric in every)
        spread = "Line: p50, band: up to p95." if is_wide else "Line: p50."
        lines = [_band(canvas.axes, index, *line) for index, line in enumerate(lines)]
    for index, (setup, points) in enumerate(lines):
        _line(canvas.axes, points, index, results.labels[setup.id], 1 / 1000)
    canvas.axes.set(xlabel="requests at once", title="seconds")
    _from_zero(canvas.axes)
    ticks = _ticks(lines)
    canvas.axes.set_xticks(ticks, [str(load) for load in ticks])
    note = f"{spread} Lower is better.".strip()
    yield _finished(canvas, results, lines, "Time to first response, ms", note)


def _band(
    axes: Axes, index: int, setup: Setup, points: Sequence[PlotPoint]
) -> tuple[Setup, Sequence[PlotPoint]]:
    """Draw p50 to p95 in seconds, and return the points of p50."""
    known = [point.metric.percentiles for point in points]
    low, high = ([each[name] / 1000 for each in known] for name in ("p50", "p95"))
    axes.fill_between(
        [point.x for point in points], low, high, color=colour(index), alpha=0.16, linewidth=0
    )
    medians = (Metric(mean=each["p50"]) for each in known)
    return setup, [replace(p, metric=m) for p, m in zip(points, medians, strict=True)]


def _variants(results: Results) -> Iterator[Plot]:
    """A sweep or a pair: decoding, and below it the acceptance of drafts."""
    found = [
        (setup, points[0])
        for setup in results.setups
        if (points := results.at(setup, "tg_tps", concurrency=1))
    ]
    if len({setup.variant for setup, _ in found}) < 2:
        return
    found = found[:MAX_PREDICTIONS]
    accepted = [point.cell.metrics.get("acceptance") for _, point in found]
    sweep = any(metric is not None for metric in accepted)
    title = "Variants: decoding and acceptance (c=1)" if sweep else "Variants: decoding (c=1)"
    canvas = PlotCanvas("variants", title, (1.7, 1.0) if sweep else (2.3,))
    speeds = [point.metric for _, point in found]
    _bars(canvas.axes, speeds, 0)
    canvas.axes.set_title("tok/s")
    if sweep:
        _bars(canvas.panels[1], [Metric(mean=m.mean * 100 if m else 0) for m in accepted], 1)
        canvas.panels[1].set_title("accepted, %")
        canvas.panels[1].set_ylim(0, 119)
        canvas.axes.tick_params(labelbottom=False)
    argument, names = _variant_names(results, [setup for setup, _ in found])
    crowded = len(found) > 6 or max(map(len, names)) > 60 // len(found)
    canvas.panels[-1].set_xticks(
        range(len(found)), [clipped(name, 18) for name in names], rotation=25 if crowded else 0,
        ha="right" if crowded else "center", fontsize=7 if crowded else 8.5,
    )  # fmt: skip
    canvas.panels[-1].set_xlabel(argument)
    figures = ", ".join(f"{n} {number(m.mean)}" for n, m in zip(names, speeds, strict=True))
    canvas.description = f"{title}: {figures}"
    canvas.note = _shape_note(results)
    yield canvas.finish()


def _bars(axes: Axes, metrics: Sequence[Metric], index: int) -> None:
    heights = [metric.mean for metric in metrics]
    errors = [metric.std or 0 for metric in metrics]
    bars = axes.bar(
        range(len(metrics)), heights, 0.62, color=colour(index),
        yerr=errors if any(errors) else None, error_kw={"ecolor": INK, "elinewidth": 0.9},
    )  # fmt: skip
    axes.bar_label(bars, fmt="%.0f" if index else number, padding=2, fontsize=SMALL)
    axes.set_ylim(0, max(1e-9, *map(sum, zip(heights, errors, strict=True))) * 1.16)


def _variant_names(results: Results, setups: Sequence[Setup]) -> tuple[str, list[str]]:
    """Return the argument that is varied, or "", and a name of each setup.

    The name is the value alone where all vary one argument of one server.
    """
    arguments = {setup.variant.partition("=")[0] for setup in setups if "=" in setup.variant}
    argument = clipped(arguments.pop(), 50) if len(arguments) == 1 else ""
    if len({(setup.tp, setup.replicas, setup.model) for setup in setups}) > 1:
        return argument, [results.labels[setup.id] for setup in setups]
    values = [s.variant.partition("=")[2] if argument else s.variant for s in setups]
    return argument, [value or "as is" for value in values]


def predicted_plot(results: Results) -> Iterator[Plot]:
    """Yield measured figures as shares of the predicted ones, each with the predicted range."""
    rows = [one for one in results.predicted if one.value > 0][:MAX_PREDICTIONS]
    if not rows:
        return
    title = "Measured as a share of the prediction"
    canvas = PlotCanvas("predicted", title, (0.24 * len(rows) + 0.3,))
    axes = canvas.axes
    for place, one in enumerate(rows):
        ends = [one.low / one.value, one.high / one.value]
        axes.plot(ends, [place, place], color=GRID, linewidth=7, solid_capstyle="butt")
        marker, series = ("o", 0) if one.is_inside else ("X", 1)
        axes.plot([one.measured / one.value], [place], marker=marker, color=colour(series))
    axes.axvline(1, color=SOFT, linewidth=0.9, linestyle=":")
    names = [clipped(f"{results.labels[r.setup]} {predicted(r.metric, r.key)}", 22) for r in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=7.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("measured / predicted")
    axes.grid(axis="y", visible=False)
    outside = sum(not one.is_inside for one in rows)
    canvas.note = f"Grey: the predicted range. {outside} of {len(rows)} outside of it (crosses)."
    canvas.description = f"{canvas.title}. {canvas.note}"
    yield canvas.finish()


def _lines(results: Results, metric: MetricName, **fixed: int) -> Lines:
    found = [(setup, results.at(setup, metric, **fixed)) for setup in results.setups]
    return [(setup, points) for setup, points in found if points][:MAX_LINES]


def _line(
    axes: Axes, points: Sequence[PlotPoint], index: int, label: str, scale: float = 1.0
) -> None:
    """Draw a line with the standard deviation of its points, all times `scale`."""
    x, y = [point.x for point in points], [point.metric.mean * scale for point in points]
    errors = [(point.metric.std or 0) * scale for point in points]
    size = 5 if len(x) <= 20 else 2.5
    axes.plot(x, y, label=clipped(label), markersize=size, **line_style(index))
    if any(errors):
        axes.errorbar(x, y, errors, fmt="none", ecolor=colour(index), elinewidth=0.9)


def _from_zero(axes: Axes, room: float = 1.04) -> None:
    axes.set_ylim(0, axes.get_ylim()[1] * room)


def _ticks(lines: Lines) -> list[int]:
    """Return the places of points whose labels do not touch each other; first and last always."""
    values = sorted({int(point.x) for _, points in lines for point in points})
    span = values[-1] - values[0] or 1
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if kept[-1] - value >= 0.075 * span:
            kept.append(value)
    if len(kept) > 1:
        kept[-1] = values[0]
    return kept[::-1]


def _finished(
    canvas: PlotCanvas, results: Results, lines: Lines, described: str, note: str = ""
) -> Plot:
    """Draw a plot of lines, described by the figures of all of them."""
    canvas.legend()
    parts = [
        f"{results.labels[setup.id]} "
        + ", ".join(f"{point.x:g}: {number(point.metric.mean)}" for point in points)
        for setup, points in lines
    ]
    canvas.description = f"{described}. {'; '.join(parts)}"
    canvas.note = f"{_shape_note(results)} {note}".strip()
    return canvas.finish()


def _shape_note(results: Results) -> str:
    return f"pp{results.shape[0]}, tg{results.shape[1]}." if results.shape else ""


# -- the nodes: GPU memory by phase, and telemetry over time ---------------------------------------

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


_SLOW = f"Dotted: {SLOW_MHZ / 1000:g} GHz, below which a cell is flagged."
_LIMITS: dict[str, dict[str, Any]] = {"clocks": {"limit": SLOW_MHZ, "note": _SLOW}}
PANELS = tuple(Panel(**one, **_LIMITS.get(one["name"], {})) for one in DECLARED["panel"])


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
    canvas = PlotCanvas("vram", "GPU memory by phase, GiB", heights)
    width = 0.8 / len(nodes)
    highest = max(r.used_mib for setup in setups for r in setup.vram) / 1024
    for axes, setup in zip(canvas.panels, setups, strict=True):
        for index, (node, phases) in enumerate((node, readings(setup)[node]) for node in nodes):
            left = (index - (len(nodes) - 1) / 2) * width
            places = [place + left for place in range(len(PHASES))]
            used = [phases[p].used_mib / 1024 if p in phases else math.nan for p in PHASES]
            bars = axes.bar(places, used, width * 0.94, color=colour(index), label=node)
            axes.bar_label(bars, fmt=_gib_label, padding=2, fontsize=SMALL)
        axes.set_ylim(0, max(1.0, highest * 1.18))
        axes.set_title(clipped(results.labels[setup.id]))
        axes.tick_params(labelbottom=axes is canvas.panels[-1])
    canvas.panels[-1].set_xticks(range(len(PHASES)), [phase.replace("_", " ") for phase in PHASES])
    canvas.legend()
    canvas.note = "Held by GPU processes, as nvidia-smi --query-compute-apps lists them."
    canvas.description = f"{canvas.title}. The table below has the figures."
    yield canvas.finish()


def _gib_label(gib: float) -> str:
    return "" if math.isnan(gib) else f"{gib:.0f}" if gib >= 10 or not gib else f"{gib:.1f}"


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
            (index, part, *line_of(node, column))
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
        yield _panel_finished(canvas, panel, spans, axis)


def _panel_finished(
    canvas: PlotCanvas, panel: Panel, spans: Sequence[Span], axis: TimeAxis
) -> Plot:
    axes = canvas.axes
    if panel.limit is not None:
        axes.axhline(panel.limit, color=SOFT, linewidth=0.9, linestyle=":")
    axes.set_ylim(0, max(axes.get_ylim()[1], panel.limit or 0) * 1.14 or 1)
    axes.set_xlim(0, axis.width)
    for index, (label, left, right) in enumerate(spans):
        tint = 0.09 if index % 2 else 0.05
        axes.axvspan(left, right, color=SOFT, alpha=tint, linewidth=0, zorder=0)
        room = int((right - left) / axis.width * 56)
        if room >= 4:
            axes.text(
                (left + right) / 2, 0.985, clipped(label, room), ha="center", va="top",
                transform=axes.get_xaxis_transform(), fontsize=SMALL, color=SOFT,
            )  # fmt: skip
    axes.set_xlabel(f"{axis.unit} since the start of telemetry")
    axes.set_title(panel.unit)
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


# -- telemetry of a run, read from Parquet ---------------------------------------------------

NUMBERS = frozenset(column for panel in PANELS for column, _ in panel.columns)
"""Columns that are plotted; a file may lack any of them, and any value may be null."""

GAP = 10.0
"""Seconds without a sample after which a line is interrupted: samples come once a second."""

MOST_GAPS = 75
"""Of a line: a file of more is no use, and may be somebody else's."""

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
            table = file.read(["time", "node", *sorted(NUMBERS & present)])
        return _by_node(table)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidFile(f"not telemetry in Parquet: {reason}", where=str(path)) from None


def line_of(node: NodeTelemetry, column: str) -> tuple[Floats, Floats]:
    """Return times and values; not a number ends a line before a gap."""
    import numpy as np

    kept = np.isfinite(node.values[column])
    seconds, values = node.seconds[kept], node.values[column][kept]
    gaps = np.flatnonzero(np.diff(seconds) > GAP)[:MOST_GAPS] + 1
    return np.insert(seconds, gaps, np.nan), np.insert(values, gaps, np.nan)


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
