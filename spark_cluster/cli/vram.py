"""`vram`: each node's GPU memory by process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.serving.vram import NodeVram


@click.command()
@click.pass_obj
def command(app: App) -> None:
    """Show who holds GPU memory on each node, asked on the host.

    On a Spark the GPU's memory is the machine's: MemTotal and MemAvailable are shown next to it.
    """
    app.connect_early("vram")
    from spark_cluster.runner.agents import agents
    from spark_cluster.serving import vram

    nodes = app.nodes
    app.import_meanwhile()
    with agents(nodes, "vram") as sessions:
        readings = vram.sample(sessions)
    if app.as_json:
        app.print_json({"nodes": [reading.to_dict() for reading in readings]})
    else:
        app.console.print(table(readings))


def table(
    readings: list[NodeVram],
    peak: list[NodeVram] | None = None,
    before: list[NodeVram] | None = None,
) -> Table:
    """Return the table of processes, and of each node's sum next to the node's total."""
    from rich.table import Table

    from spark_cluster.cli.console import painted

    result = Table(box=None, pad_edge=False, header_style="bold")
    result.add_column("node")
    result.add_column("pid", justify="right")
    result.add_column("process", no_wrap=True)
    for title in ("used", *_extra(peak, before), "available", "total MiB"):
        result.add_column(title, justify="right")
    other = {reading.name: reading for reading in peak or before or ()}
    for reading in readings:
        for process in reading.processes:
            used = "?" if process.used_mib is None else f"{process.used_mib}"
            cells = ["", used, *([""] if other else []), "", ""]
            result.add_row(reading.name, str(process.pid), process.name, *cells[1:])
        extra = [str(other[reading.name].used_mib)] if reading.name in other else []
        result.add_row(
            painted(reading.name, "bold"),
            "",
            painted("sum" if reading.processes else "nothing is held", "dim"),
            painted(str(reading.used_mib), "bold"),
            *(extra or ([""] if other else [])),
            str(reading.mem_available_mib),
            str(reading.mem_total_mib),
        )
    return result


def _extra(peak: list[NodeVram] | None, before: list[NodeVram] | None) -> list[str]:
    if peak:
        return ["peak"]
    return ["before"] if before else []
