"""`models unpin`: let a pinned model be pruned."""

from __future__ import annotations

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_pin import change


@click.command()
@click.argument("model", metavar="ORG/NAME[@REVISION]")
@click.pass_obj
def command(app: App, model: str) -> None:
    """Unpin a model on the selected nodes, so that `models prune` may remove it.

    With @REVISION (branch, tag or commit) only the commit that it has there now.
    """
    change(app, model, "unpin", "is unpinned now", "was not pinned")
