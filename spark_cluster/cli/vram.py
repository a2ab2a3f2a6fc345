"""`vram`: each node's GPU memory by process, and that of recorded runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from spark_cluster.cli.app import App, ended_by_signals
from spark_cluster.cli.console import painted, plain_table, styled
from spark_cluster.cli.options import Command, Positive
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.engine.vram import NodeVram
    from spark_cluster.runner.session import Session

LAST = "last"
"""In place of a run's id: the last run on this machine that read memory."""


@click.command(cls=Command)
def command(
    app: App,
    *,
    watch: bool,
    interval: Annotated[float, click.FloatRange(min=0.5, max=3600.0)] = 2.0,
    count: Positive | None,
    run_id: str | None,
    plot: Annotated[Path, click.Path(dir_okay=False, path_type=Path)] | None,
) -> None:
    """Show who holds GPU memory on each node, asked on the host.

    On a Spark the GPU's memory is the machine's: MemTotal and MemAvailable are shown next to it.
    With --watch the largest sum so far is shown too; --json then prints one line for each reading.
    Each `up`, `swap` and `down` records it by phase (before, loading, ready, under load, stopped):
    --run shows that of a run, --plot draws it.

    Args:
        watch: Read again and again until Ctrl-C, with the peak.
        interval: With --watch: seconds between two readings. [default]
        count: With --watch: end after so many.
        run_id (--run RUN): Show the memory of a run that was recorded on this machine, by phase,
            and ask no node; `last` for the last one.
        plot (FILE): Draw the memory of a recorded run over time, as SVG or PNG; without --run that
            of the last one.
    """
    if run_id is not None or plot is not None:
        _must_stand_alone(watch)
        _show_run(app, run_id or LAST, plot)
        return

    nodes = app.nodes
    app.import_meanwhile("rich.live" if watch else "spark_cluster.cli.results")
    if watch:
        with app.cluster.dialer.sessions(nodes, "vram") as sessions:
            with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
                _watch(app, sessions, interval, count)
            return
    found = app.cluster.vram()
    app.show(found, lambda app, found: app.console.print(table(found.nodes)))


def _watch(app: App, sessions: Mapping[str, Session], interval: float, count: int | None) -> None:
    """Show readings until Ctrl-C, or so many; a node that is lost ends it with its error."""
    from spark_cluster.engine import vram

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
    readings: Sequence[NodeVram],
    peak: list[NodeVram] | None = None,
    before: list[NodeVram] | None = None,
    under_load: list[NodeVram] | None = None,
) -> Table:
    """Return the table of processes, and of each node's sum next to the node's total.

    Args:
        peak, before, under_load: other readings of the nodes, whose sums are shown next to it.
    """
    others = {"peak": peak, "before": before, "under load": under_load}
    shown = {title: {one.name: one for one in found} for title, found in others.items() if found}
    figures = ("used", *shown, "available", "total MiB")
    result = plain_table(
        "node", "pid", "process", *figures, right=("pid", *figures), whole=("process",)
    )
    for reading in readings:
        for process in reading.processes:
            used = "?" if process.used_mib is None else f"{process.used_mib}"
            empty = [""] * (len(shown) + 2)
            name = f"{process.name} ({process.model})" if process.model else process.name
            result.add_row(reading.name, str(process.pid), name, used, *empty)
        sums = (found.get(reading.name) for found in shown.values())
        result.add_row(
            painted(reading.name, "bold"),
            "",
            painted("sum" if reading.processes else "nothing is held", "dim"),
            painted(str(reading.used_mib), "bold"),
            *("" if one is None else str(one.used_mib) for one in sums),
            str(reading.mem_available_mib),
            str(reading.mem_total_mib),
        )
    return result


def _show_run(app: App, run: str | None, file: Path | None) -> None:
    """Show the memory of a recorded run by phase, and draw it into a file.

    Raises:
        UsageError: there is no such record, no memory in it, or it cannot be drawn so.
    """
    from spark_cluster.engine import memory_record

    record = memory_record.of_run(None if run == LAST else run)
    if file is not None:
        from spark_cluster.bench.report.rendering import write_plot

        write_plot(record, file)
    phases = record.phases()
    if app.as_json:
        plot = str(file) if file is not None else None
        document = {
            "run": record.run,
            "command": record.command,
            "memory": list(phases.nodes.values()),
        }
        app.print_json({**document, "plot": plot})
        return

    console = app.console
    console.print(styled("[bold]{}[/]  {}", record.run, record.command), soft_wrap=True)
    for node in phases.nodes.values():
        console.print(painted(f"  {node}"), soft_wrap=True)
    if file is not None:
        console.print(styled("plot  {}", file), soft_wrap=True)


def _must_stand_alone(watch: bool) -> None:
    """Raises:
    UsageError: a recorded run is asked for, and nodes too.
    """
    if watch:
        raise UsageError(
            "--run and --plot are about a recorded run, and --watch asks the nodes now",
            hint="leave one of them out; `spark-cluster top --record FILE` keeps what it reads",
        )
