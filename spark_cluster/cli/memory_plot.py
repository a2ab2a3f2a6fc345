"""The memory of a recorded run, shown and drawn: what `vram --run` and `--plot` do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.cli.console import painted, styled
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.cli.app import App

LAST = "last"
"""In place of a run's id: the last run on this machine that read memory."""


def show_run(app: App, run: str | None, file: Path | None) -> None:
    """Show the memory of a recorded run by phase, and draw it into a file.

    Raises:
        UsageError: there is no such record, no memory in it, or it cannot be drawn so.
    """
    from spark_cluster.engine import memory_record

    record = memory_record.of_run(None if run == LAST else run)
    if file is not None:
        from spark_cluster.bench.report.plot_run import write_plot

        write_plot(record, file)
    phases = record.phases()
    if app.as_json:
        plot = str(file) if file is not None else None
        document = {"run": record.run, "command": record.command, "memory": phases.to_dict()}
        app.print_json({**document, "plot": plot})
        return

    console = app.console
    console.print(styled("[bold]{}[/]  {}", record.run, record.command), soft_wrap=True)
    for node in phases.nodes.values():
        console.print(painted(f"  {node}"), soft_wrap=True)
    if file is not None:
        console.print(styled("plot  {}", file), soft_wrap=True)


def must_stand_alone(watch: bool) -> None:
    """Raises:
    UsageError: a recorded run is asked for, and nodes too.
    """
    if watch:
        raise UsageError(
            "--run and --plot are about a recorded run, and --watch asks the nodes now",
            hint="leave one of them out; `spark-cluster top --record FILE` keeps what it reads",
        )
