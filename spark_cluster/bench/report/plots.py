"""Plots of what was measured: against depth and load, variants, predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spark_cluster.bench.record import Metric, MetricName, Setup
from spark_cluster.bench.report.cells import Point, Results
from spark_cluster.bench.report.drawing import (
    GRID,
    INK,
    SOFT,
    Canvas,
    Plot,
    clipped,
    colour,
    line_style,
)
from spark_cluster.bench.report.formats import number, predicted, tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 8
MAX_PREDICTIONS = 24


def measured_plots(results: Results) -> Iterator[Plot]:
    """Yield the plots for which the run has figures."""
    yield from _against_depth(
        results, "decode-depth", "Decoding against depth (c=1)", "tg_tps", "tok/s"
    )
    yield from _against_depth(
        results, "prefill-depth", "Prefill against depth (c=1)", "pp_tps", "tok/s"
    )
    yield from _per_user(results)
    yield from _first_response(results)
    yield from _variants(results)


def _against_depth(
    results: Results, name: str, title: str, metric: MetricName, unit: str
) -> Iterator[Plot]:
    lines = [line for line in _lines(results, metric, concurrency=1) if len(line[1]) > 1]
    depths = sorted({int(point.x) for _, points in lines for point in points})
    if not lines:
        return
    canvas = Canvas(name, title)
    for index, (setup, points) in enumerate(lines):
        _line(canvas.axes, points, index, results.labels[setup.id])
    canvas.axes.set_ylabel(unit)
    _from_zero(canvas.axes)
    canvas.axes.set_xlabel("tokens in the context before the prompt")
    ticks = _apart(depths)
    canvas.axes.set_xticks(ticks, [tokens(depth) for depth in ticks])
    canvas.legend()
    canvas.description = _described(title, results, lines)
    canvas.note = _shape_note(results)
    yield canvas.finish()


def _per_user(results: Results) -> Iterator[Plot]:
    depth = results.lowest_depth
    lines = [
        (setup, [p for p in points if _request(p) is not None])
        for setup, points in _lines(results, "tg_tps", depth=depth)
    ]
    lines = [(setup, points) for setup, points in lines if points]
    if all(len(points) < 2 for _, points in lines):
        return
    canvas = Canvas("per-user-aggregate", "Per-user against aggregate speed")
    for index, (setup, points) in enumerate(lines):
        x = [point.metric.mean for point in points]
        y = [metric.mean for point in points if (metric := _request(point))]
        canvas.axes.plot(x, y, label=results.labels[setup.id], **line_style(index))
        for point, at_x, at_y in zip(points, x, y, strict=True):
            canvas.axes.annotate(
                f"c={point.x:g}", (at_x, at_y), xytext=(0, 5 if index else -12),
                textcoords="offset points", ha="center", fontsize=7.5, color=colour(index),
            )  # fmt: skip
    canvas.axes.set_xlabel("tok/s of all requests together")
    canvas.axes.set_ylabel("tok/s of one request")
    canvas.axes.set_xlim(left=0)
    _from_zero(canvas.axes, 1.12)
    canvas.legend()
    canvas.description = _described("Speed of all requests together", results, lines)
    canvas.note = f"{_shape_note(results)} Up and to the right is better. c: requests at once."
    yield canvas.finish()


def _request(point: Point) -> Metric | None:
    found = point.cell.metrics.get("tg_tps_request")
    return found or (point.metric if point.x == 1 else None)


def _first_response(results: Results) -> Iterator[Plot]:
    lines = _lines(results, "ttfr_ms", depth=results.lowest_depth)
    loads = sorted({int(point.x) for _, points in lines for point in points})
    if len(loads) < 2:
        return
    canvas = Canvas("ttfr-concurrency", "Time to first response against load")
    banded = False
    for index, (setup, points) in enumerate(lines):
        scaled = [Point(p.x, _in_seconds(p.metric), p.cell) for p in points]
        bands = [_p50_p95(point.metric) for point in scaled]
        whole = [band for band in bands if band is not None]
        if len(whole) == len(points):
            banded = True
            low, high = zip(*whole, strict=True)
            x = [point.x for point in scaled]
            canvas.axes.fill_between(x, low, high, color=colour(index), alpha=0.16, linewidth=0)
            scaled = [Point(p.x, Metric(mean=p50), p.cell) for p, (p50, _) in zip(
                scaled, whole, strict=True)]  # fmt: skip
        _line(canvas.axes, scaled, index, results.labels[setup.id])
    canvas.axes.set_xlabel("requests at once")
    canvas.axes.set_ylabel("s")
    _from_zero(canvas.axes)
    ticks = _apart(loads)
    canvas.axes.set_xticks(ticks, [str(load) for load in ticks])
    canvas.legend()
    canvas.description = _described("Time to first response, ms", results, lines)
    band = "Line: p50, band: up to p95." if banded else "Bars: standard deviation."
    canvas.note = f"{_shape_note(results)} {band} Lower is better."
    yield canvas.finish()


def _in_seconds(metric: Metric) -> Metric:
    return Metric(
        mean=metric.mean / 1000,
        std=None if metric.std is None else metric.std / 1000,
        percentiles={name: value / 1000 for name, value in metric.percentiles.items()},
    )


def _p50_p95(metric: Metric) -> tuple[float, float] | None:
    found = metric.percentiles.get("p50"), metric.percentiles.get("p95")
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _variants(results: Results) -> Iterator[Plot]:
    """A sweep or a pair: decoding, and below it the acceptance of drafts."""
    found = [
        (setup, points[0])
        for setup in results.setups
        if (points := results.at(setup, "tg_tps", concurrency=1))
    ]
    varied = {setup.variant for setup, _ in found}
    if len(varied) < 2:
        return
    found = found[:MAX_PREDICTIONS]
    accepted = [point.cell.metrics.get("acceptance") for _, point in found]
    sweep = any(metric is not None for metric in accepted)
    title = "Variants: decoding and acceptance (c=1)" if sweep else "Variants: decoding (c=1)"
    canvas = Canvas("variants", title, (1.7, 1.0) if sweep else (2.3,), top=0.42)
    places = range(len(found))
    speeds = [point.metric for _, point in found]
    _bars(canvas.axes, speeds, 0)
    canvas.axes.set_ylabel("tok/s")
    if sweep:
        shares = [Metric(mean=m.mean * 100) if m else Metric(mean=0) for m in accepted]
        _bars(canvas.panels[1], shares, 1)
        canvas.panels[1].set_ylabel("accepted, %")
        canvas.panels[1].set_ylim(0, 119)
        canvas.axes.tick_params(labelbottom=False)
    names = [_variant_name(results, setup, found) for setup, _ in found]
    crowded = len(found) > 6 or max(map(len, names)) > 60 // len(found)
    canvas.panels[-1].set_xticks(
        places, [clipped(name, 18) for name in names], rotation=25 if crowded else 0,
        ha="right" if crowded else "center", fontsize=7 if crowded else 8.5,
    )  # fmt: skip
    argument = _common_argument([setup for setup, _ in found])
    canvas.panels[-1].set_xlabel(argument)
    figures = ", ".join(f"{n} {number(m.mean)}" for n, m in zip(names, speeds, strict=True))
    canvas.description = f"{title}: {figures}"
    canvas.note = _shape_note(results)
    yield canvas.finish()


def _bars(axes: Axes, metrics: Sequence[Metric], index: int) -> None:
    places = range(len(metrics))
    heights = [metric.mean for metric in metrics]
    errors = [metric.std or 0 for metric in metrics]
    axes.bar(places, heights, 0.62, color=colour(index))
    if any(errors):
        axes.errorbar(places, heights, errors, fmt="none", ecolor=INK, elinewidth=0.9)
    for place, height, error in zip(places, heights, errors, strict=True):
        axes.annotate(
            f"{height:.1f}" if index == 0 else f"{height:.0f}", (place, height + error),
            xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7.5,
        )  # fmt: skip
    axes.set_ylim(0, max(1e-9, *(h + e for h, e in zip(heights, errors, strict=True))) * 1.16)


def _common_argument(setups: Sequence[Setup]) -> str:
    names = {setup.variant.partition("=")[0] for setup in setups if "=" in setup.variant}
    return clipped(names.pop(), 50) if len(names) == 1 else ""


def _variant_name(results: Results, setup: Setup, among: Sequence[tuple[Setup, Point]]) -> str:
    """The value alone where all vary the same argument."""
    setups = [other for other, _ in among]
    alike = len({(s.tp, s.replicas, s.model) for s in setups}) == 1
    if not alike:
        return results.labels[setup.id]
    if not _common_argument(setups):
        return setup.variant or "as is"
    return setup.variant.partition("=")[2] or "as is"


def predicted_plot(results: Results) -> Iterator[Plot]:
    """Yield measured figures as shares of the predicted ones, each with the predicted range."""
    rows = [one for one in results.predicted if one.value > 0][:MAX_PREDICTIONS]
    if not rows:
        return
    title = "Measured as a share of the prediction"
    canvas = Canvas("predicted", title, (0.24 * len(rows) + 0.3,), top=0.36)
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


def _lines(results: Results, metric: MetricName, **fixed: int) -> list[tuple[Setup, list[Point]]]:
    found = [(setup, results.at(setup, metric, **fixed)) for setup in results.setups]
    return [(setup, points) for setup, points in found if points][:MAX_LINES]


def _line(axes: Axes, points: Sequence[Point], index: int, label: str) -> None:
    x, y = [point.x for point in points], [point.metric.mean for point in points]
    errors = [point.metric.std or 0 for point in points]
    size = 5 if len(x) <= 20 else 2.5
    axes.plot(x, y, label=clipped(label), markersize=size, **line_style(index))
    if any(errors):
        axes.errorbar(x, y, errors, fmt="none", ecolor=colour(index), elinewidth=0.9)


def _from_zero(axes: Axes, room: float = 1.04) -> None:
    axes.set_ylim(0, axes.get_ylim()[1] * room)


def _apart(values: Sequence[int]) -> list[int]:
    """The values whose labels do not touch each other on an axis; first and last always."""
    span = values[-1] - values[0] or 1
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if kept[-1] - value >= 0.075 * span:
            kept.append(value)
    if len(kept) > 1:
        kept[-1] = values[0]
    return kept[::-1]


def _described(title: str, results: Results, lines: list[tuple[Setup, list[Point]]]) -> str:
    parts = [
        f"{results.labels[setup.id]} " + ", ".join(
            f"{point.x:g}: {number(point.metric.mean)}" for point in points
        )
        for setup, points in lines
    ]  # fmt: skip
    return f"{title}. {'; '.join(parts)}"


def _shape_note(results: Results) -> str:
    if results.shape is None:
        return ""
    return f"pp{results.shape[0]}, tg{results.shape[1]}."
