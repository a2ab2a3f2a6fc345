"""`bench show`: the figures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App

if TYPE_CHECKING:
    from spark_cluster.bench.record import CellResult, MetricName, Record
    from spark_cluster.bench.report.table import Table

MOST = 6
"""Figures that a table of 80 columns has room for, next to the load."""

TIMES: tuple[MetricName, ...] = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")

_TITLES: dict[MetricName, str] = {
    "tg_tps": "decode",
    "tg_tps_request": "each",
    "pp_tps": "prefill",
    "ttfr_ms": "ms to first",
    "score": "score",
    "answer_ms": "ms an answer",
    "request_throughput": "requests/s",
    "goodput": "goodput",
    "output_tps": "output",
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "acceptance": "accepted",
    "acceptance_length": "a step",
}
"""Figures of a cell, the most telling first, and the titles of their columns."""


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.pass_obj
def show(app: App, folder: Path) -> None:
    """Show the figures of a run, and what failed.

    RUN is its folder, or its run.json.
    """
    from spark_cluster.bench.run_folder import load_record

    record = load_record(folder)
    if app.as_json:
        app.print_json(record.model_dump(mode="json"))
    else:
        _show(app, record)


def _show(app: App, record: Record) -> None:
    from spark_cluster.bench.report.cells import Results
    from spark_cluster.bench.report.tables import answers_table
    from spark_cluster.cli.bench_format import console_table
    from spark_cluster.cli.console import painted, styled

    console = app.console
    bad = [cell for cell in record.cells if cell.status != "ok"]
    good = len(record.cells) - len(bad)
    colour = "red" if any(cell.status == "failed" for cell in bad) else "green"
    verdict = f"{record.status}: {good} of {len(record.cells)} cells measured"
    console.print(styled("{} [dim]{}[/]", painted(verdict, f"bold {colour}"), record.id))
    mode = f", latency mode {record.tool.latency_mode}" if record.tool.latency_mode else ""
    about = f"suite {record.suite}, {record.tool.name} {record.tool.version}{mode}; speeds in tok/s"
    console.print(painted(about, "dim"))
    place = {setup.id: number for number, setup in enumerate(record.setups)}
    ordered = sorted(  # turns of a pair stand together
        (cell for cell in record.cells if cell.status == "ok"),
        key=lambda cell: (place.get(cell.setup, len(place)), cell.setup),
    )
    for setup, cells in groupby(ordered, lambda cell: cell.setup):
        found = list(cells)
        console.print(styled("\n[bold]{}[/]", setup), soft_wrap=True)
        if about := _replicas(record, setup):
            console.print(painted(about, "dim"))
        console.print(console_table(_figures_table(found)))
        results = Results(record.model_copy(update={"cells": tuple(found)}))
        answers = answers_table(results).without("setup", "kind", "streamed")
        for more in (_percentiles_table(found), answers):
            if more.rows:
                console.print()
                console.print(console_table(more))
    _show_reasons(app, record)


def _show_reasons(app: App, record: Record) -> None:
    """Show why cells have no result, and what there is against others."""
    from spark_cluster.cli.console import painted, styled

    for cell in record.cells:
        if cell.status != "ok":
            colour = "red" if cell.status == "failed" else "yellow"
            app.console.print(painted(f"{cell.status}: {cell.id}: {cell.reason}", colour))
    for cell in record.cells:
        for text in cell.attention:
            app.console.print(styled("[yellow]attention:[/] {}: {}", cell.id, text))


def _replicas(record: Record, setup: str) -> str:
    """Return what the servers of a setup are; empty for one server."""
    known = next((one for one in record.setups if one.id == setup), None)
    if known is None or known.replicas == 1:
        return ""
    return f"{known.replicas} replicas on {', '.join(known.nodes)}, behind one endpoint"


def _figures_table(cells: Sequence[CellResult]) -> Table:
    """The means of each cell, as many as 80 columns have room for."""
    from spark_cluster.bench.report.table import Table
    from spark_cluster.bench.report.tables import mean
    from spark_cluster.cli.bench_format import load_text

    several = any(cell.key.concurrency != 1 for cell in cells)
    names = [
        name
        for name in _TITLES
        if any(name in cell.metrics for cell in cells) and (name != "tg_tps_request" or several)
    ][:MOST]
    rows = ((load_text(cell.key), *(mean(cell, name) for name in names)) for cell in cells)
    return Table("", ("", *(_TITLES[name] for name in names)), tuple(rows))


def _percentiles_table(cells: Sequence[CellResult]) -> Table:
    """Percentiles of the times of `vllm bench serve`, below the load that they are of."""
    from spark_cluster.bench.record import SHOWN_PERCENTILES
    from spark_cluster.bench.report.formats import number
    from spark_cluster.bench.report.table import Table
    from spark_cluster.cli.bench_format import TITLES, load_text

    rows: list[tuple[str, ...]] = []
    marked = {}
    for cell in cells:
        found = [name for name in TIMES if name in cell.metrics and cell.metrics[name].percentiles]
        if found:
            marked[len(rows)] = "load"
            rows.append((load_text(cell.key), *[""] * (1 + len(SHOWN_PERCENTILES))))
        for name in found:
            metric = cell.metrics[name]
            known = (metric.percentiles.get(p) for p in SHOWN_PERCENTILES)
            figures = ("" if value is None else number(value) for value in known)
            rows.append((f"  {TITLES[name]}", number(metric.mean), *figures))
    return Table("", ("", "mean", *SHOWN_PERCENTILES), tuple(rows), marked=marked)
