"""`bench show`: the figures of a run."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App

if TYPE_CHECKING:
    from spark_cluster.bench.record import CellResult, MetricName, Record


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
    from rich.table import Table

    from spark_cluster.cli.bench_format import load_text
    from spark_cluster.cli.bench_tables import percentiles_table, questions_table
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
        record.cells, key=lambda cell: (place.get(cell.setup, len(place)), cell.setup)
    )
    for setup, cells in groupby(ordered, lambda cell: cell.setup):
        found = [cell for cell in cells if cell.status == "ok"]
        if not found:
            continue
        names = _columns(found)
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("", overflow="fold")
        for name in names:
            table.add_column(_TITLE[name], justify="right", no_wrap=True)
        for cell in found:
            table.add_row(load_text(cell.key), *(_figure(cell, name) for name in names))
        console.print(styled("\n[bold]{}[/]", setup), soft_wrap=True)
        if about := _replicas(record, setup):
            console.print(painted(about, "dim"))
        console.print(table)
        for more in (percentiles_table(found), questions_table(found)):
            if more is not None:
                console.print()
                console.print(more)
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


MOST = 6
"""Figures that a table of 80 columns has room for, next to the load."""

_TITLE: dict[MetricName, str] = {
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


def _columns(cells: list[CellResult]) -> list[MetricName]:
    """Return the figures that a table of these cells has room for."""
    several = any(cell.key.concurrency != 1 for cell in cells)
    return [
        name
        for name in _TITLE
        if any(name in cell.metrics for cell in cells) and (name != "tg_tps_request" or several)
    ][:MOST]


def _figure(cell: CellResult, name: MetricName) -> str:
    from spark_cluster.cli.bench_format import figure

    metric = cell.metrics.get(name)
    return "" if metric is None else figure(metric.mean)
