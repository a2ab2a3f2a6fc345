"""`vram`: each node's GPU memory by process."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.ended_by_signals import ended_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.table import Table

    from spark_cluster.runner.session import Session
    from spark_cluster.serving.vram import NodeVram


@click.command()
@click.option("--watch", is_flag=True, help="Read again and again until Ctrl-C, with the peak.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5, max=3600.0),
    default=2.0,
    show_default=True,
    help="With --watch: seconds between two readings.",
)
@click.option("--count", type=click.IntRange(min=1), help="With --watch: end after so many.")
@click.pass_obj
def command(app: App, watch: bool, interval: float, count: int | None) -> None:
    """Show who holds GPU memory on each node, asked on the host.

    On a Spark the GPU's memory is the machine's: MemTotal and MemAvailable are shown next to it.
    With --watch the largest sum so far is shown too; --json then prints one line for each reading.
    """
    app.connect_early("vram")
    from spark_cluster.runner.agents import agents
    from spark_cluster.serving import vram
    from spark_cluster.serving.programs import models_by_process

    nodes = app.nodes
    app.import_meanwhile(*(("rich.live",) if watch else ()))
    with agents(nodes, "vram") as sessions:
        if watch:
            with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
                _watch(app, sessions, interval, count)
            return
        readings = vram.sample(sessions)
        models = models_by_process(sessions)
    readings = [replace(one, models=models.get(one.name, {})) for one in readings]
    if app.as_json:
        app.print_json({"nodes": [reading.to_dict() for reading in readings]})
    else:
        app.console.print(table(readings))


def _watch(app: App, sessions: Mapping[str, Session], interval: float, count: int | None) -> None:
    """Show readings until Ctrl-C, or so many; a node that is lost ends it with its error."""
    from spark_cluster.serving import vram

    peak: list[NodeVram] = []
    with _shown(app) as show:
        for number in itertools.count(1):
            started = time.monotonic()
            now = vram.sample(sessions)
            peak = vram.peak(peak, now)
            show(now, peak)
            if number == count:
                return
            time.sleep(max(0.0, interval - (time.monotonic() - started)))


@contextlib.contextmanager
def _shown(app: App) -> Iterator[Callable[[list[NodeVram], list[NodeVram]], None]]:
    """What shows a reading and the peaks: a JSON line, a table in place, or a table each time."""
    if app.as_json:

        def line(now: list[NodeVram], peak: list[NodeVram]) -> None:
            largest = {reading.name: reading.used_mib for reading in peak}
            nodes = [{**one.to_dict(), "peak_mib": largest[one.name]} for one in now]
            click.echo(json.dumps({"at": time.time(), "nodes": nodes}))

        yield line
    elif app.console.is_terminal:
        from rich.live import Live

        with Live(console=app.console, auto_refresh=False) as live:
            yield lambda now, peak: live.update(table(now, peak), refresh=True)
    else:
        yield lambda now, peak: app.console.print(table(now, peak))


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
            model = reading.models.get(process.pid)
            shown = f"{process.name} ({model})" if model else process.name
            result.add_row(reading.name, str(process.pid), shown, *cells[1:])
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
