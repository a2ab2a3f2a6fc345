"""Plots of what was measured: against depth and load, variants, predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cluster.bench.record import Metric, MetricName, Setup
from spark_cluster.bench.report.cells import PlotPoint, Results
from spark_cluster.bench.report.drawing import (
    GRID,
    INK,
    SMALL,
    SOFT,
    Plot,
    PlotCanvas,
    clipped,
    colour,
    line_style,
)
from spark_cluster.bench.report.formats import number, predicted, tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    canvas.axes.set(ylabel="tok/s", xlabel="tokens in the context before the prompt")
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
    canvas.axes.set(xlabel="tok/s of all requests together", ylabel="tok/s of one request")
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
    spread = "Bars: standard deviation."
    for index, (setup, points) in enumerate(lines):
        known = [point.metric.percentiles for point in points]
        shown: Sequence[PlotPoint] = points
        if all({"p50", "p95"} <= percentiles.keys() for percentiles in known):
            spread = "Line: p50, band: up to p95."
            low, high = ([each[name] / 1000 for each in known] for name in ("p50", "p95"))
            x = [point.x for point in points]
            canvas.axes.fill_between(x, low, high, color=colour(index), alpha=0.16, linewidth=0)
            medians = (Metric(mean=each["p50"]) for each in known)
            shown = [replace(p, metric=m) for p, m in zip(points, medians, strict=True)]
        _line(canvas.axes, shown, index, results.labels[setup.id], 1 / 1000)
    canvas.axes.set(xlabel="requests at once", ylabel="s")
    _from_zero(canvas.axes)
    ticks = _ticks(lines)
    canvas.axes.set_xticks(ticks, [str(load) for load in ticks])
    note = f"{spread} Lower is better."
    yield _finished(canvas, results, lines, "Time to first response, ms", note)


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
    canvas = PlotCanvas("variants", title, (1.7, 1.0) if sweep else (2.3,), top=0.42)
    speeds = [point.metric for _, point in found]
    _bars(canvas.axes, speeds, 0)
    canvas.axes.set_ylabel("tok/s")
    if sweep:
        _bars(canvas.panels[1], [Metric(mean=m.mean * 100 if m else 0) for m in accepted], 1)
        canvas.panels[1].set_ylabel("accepted, %")
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
    axes.bar_label(bars, fmt=f"%.{0 if index else 1}f", padding=2, fontsize=SMALL)
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
    canvas = PlotCanvas("predicted", title, (0.24 * len(rows) + 0.3,), top=0.36)
    axes = canvas.axes
    box = axes.get_position()
    axes.set_position((0.33, box.y0, 0.62, box.height))
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
