"""`down`: stop serving, and prove that the memory is back."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.options import Changing, Command, EndingJobs, Unloading
from spark_cluster.cli.vram import table

if TYPE_CHECKING:
    from spark_cluster.cli.serving_results import DownResult


class Given(TypedDict):
    """What is handed on to `Cluster.down`."""

    unload: Unloading
    end_jobs: EndingJobs
    options: Changing


@click.command(cls=Command)
def command(app: App, **given: Unpack[Given]) -> None:
    """Stop the server and Ray on all nodes.

    Jobs that run on Ray are not ended without --end-jobs.

    Succeeds only when `nvidia-smi --query-compute-apps` lists nothing on any of them; otherwise it
    names the process ids and programs that hold memory.
    """
    app.show(app.cluster.down(**given), show)


def show(app: App, found: DownResult) -> None:
    """Print the recap, and the memory before and after."""
    app.show_recap()
    if found.stopped is not None:
        app.console.print()
        app.console.print(table(found.stopped.now, before=found.stopped.before))
