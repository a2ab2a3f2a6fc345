"""The sections of a report: the same ones, in one order, on the page and in the post."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from spark_cluster.bench.record import Record
from spark_cluster.bench.report import setup_tables, tables
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.drawing import Plot, style
from spark_cluster.bench.report.formats import Table, elapsed, moment, number, short
from spark_cluster.bench.report.plots import measured_plots, predicted_plot
from spark_cluster.bench.report.plots_nodes import (
    NodeTelemetry,
    from_datetime,
    telemetry_plots,
    vram_plot,
)

TELEMETRY_NOTE = (
    "Shaded: when which setup was under load. Of each short interval the lowest and the highest "
    "sample are drawn."
)


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        name: its anchor on the page, and the class of its tables.
        link: its name in the page's navigation; empty: it is not there.
        tables: those that have a row.
        lines: how it was measured, above the tables; a heading of the post stands above them.
        note: below the plots.
        absent: what the page says where there is neither table nor plot; empty: the page is
            without the section then.
        pasted: it is part of the tables that are pasted under words of one's own.
    """

    name: str
    title: str
    link: str = ""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""
    absent: str = ""
    pasted: bool = False

    @property
    def is_empty(self) -> bool:
        """True where nothing of it was measured."""
        return not self.tables and not self.plots


def sections(results: Results, telemetry: Sequence[NodeTelemetry]) -> tuple[Section, ...]:
    """Make all sections of a report, the plots drawn."""
    others = chain(
        (tables.sweep_table(results), tables.acceptance_table(results)),
        (tables.served_table(results), tables.answers_table(results)),
        setup_tables.check_tables(results),
    )
    comparison = _filled(tables.comparison_tables(results))
    flagged = _filled([tables.flagged_table(results)])
    cells, method = _filled(tables.benchy_tables(results)), how_measured(results.record)
    memory = _filled((setup_tables.vram_table(results), setup_tables.process_table(results)))
    environment = _filled(
        chain(setup_tables.setup_tables(results), setup_tables.node_tables(results))
    )
    with style():
        measured, predicted = tuple(measured_plots(results)), tuple(predicted_plot(results))
        vram, over_time = tuple(vram_plot(results)), tuple(telemetry_plots(results, telemetry))
    return (
        Section("summary", "", tables=_filled([tables.headline_table(results)]), pasted=True),
        Section("flagged", "Cells to look at", "To look at", flagged),
        Section("comparison", "TP=1 and TP=2", "TP=1 and TP=2", comparison, pasted=True),
        Section("measured", "Plots", "Plots", plots=measured, absent="Too few cells for a plot."),
        Section("others", "Other tables", tables=_filled(others)),
        Section(
            "predicted", "Predicted and measured", "", _filled([tables.prediction_table(results)]),
            predicted,
        ),
        Section(
            "cells", "All cells", "All cells", cells, lines=method, pasted=True,
            absent="No cell has a result.",
        ),
        Section("memory", "Memory", "Memory", memory, vram, absent="GPU memory was not recorded."),
        Section(
            "telemetry", "Telemetry", "Telemetry", (), over_time, note=TELEMETRY_NOTE,
            absent="Telemetry was not recorded.",
        ),
        Section("environment", "Environment", "Environment", environment),
    )  # fmt: skip


def _filled(tables: Iterable[Table]) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)


def how_measured(record: Record) -> tuple[str, ...]:
    """Return how a run was measured, a line each."""
    tool = record.tool
    settings = ", ".join(f"{name}={value}" for name, value in sorted(tool.settings.items()))
    caching = "on" if tool.prefix_caching else "off"
    mode = f", latency mode {tool.latency_mode}" if tool.latency_mode else ""
    lines = [f"Load generator: {tool.name} {tool.version}, prefix caching {caching}{mode}"]
    lines += [f"Settings: {short(settings)}"] if settings else []
    if record.client:
        trip = record.round_trip_ms
        away = f", {number(trip)} ms from the server" if trip is not None else ""
        lines.append(f"Load from {record.client}{away}")
    runs = sorted({cell.runs for cell in record.cells})
    lines.append(f"Runs a cell: {' or '.join(map(str, runs))}; figures: mean ± standard deviation")
    when = ", ".join(filter(None, (moment(record.started), run_time(record))))
    return (*lines, f"Measured {when}, spark-cluster {record.spark_cluster}")


def run_time(record: Record) -> str:
    """Return the duration of a run; empty when it has no end."""
    if record.finished is None:
        return ""
    return elapsed(from_datetime(record.finished) - from_datetime(record.started))
