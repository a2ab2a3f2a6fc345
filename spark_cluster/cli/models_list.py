"""`models list`: the revisions on each node."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_nodes import age, model_nodes, needed_by_recipes, short
from spark_cluster.node.sizes import gigabytes

if TYPE_CHECKING:
    from spark_cluster.engine.copies.upkeep import StoredModel, StoredModels


@click.command()
@click.pass_obj
def command(app: App) -> None:
    """List the models on each node: size, last use, pins, and what is missing of them.

    Names and sizes are compared; `spark-cluster models verify` reads the contents. Models that
    other tools have downloaded into the same cache are listed, too.
    """
    from spark_cluster.engine.copies.upkeep import stored

    with model_nodes(app) as nodes:
        found = stored(nodes, needed_by_recipes(app))
    if app.as_json:
        app.print_json({"nodes": [dataclasses.asdict(one) for one in found]})
        return
    for one in found:
        _show(app, one)


def _show(app: App, found: StoredModels) -> None:
    from rich.table import Table

    from spark_cluster.cli.console import styled

    size, count, free = gigabytes(found.size), len(found.models), gigabytes(found.free)
    line = styled("[bold]{}[/]  {} in {} models, {} free", found.node, size, count, free)
    app.console.print(line)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    for _ in range(2):
        table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for model in reversed(found.models):
        name = f"  {short(model.repository, model.commit)}"
        table.add_row(name, gigabytes(model.size), age(model.last_used), remarks(model))
    if found.models:
        app.console.print(table)


def remarks(model: StoredModel) -> str:
    """Return what is to be said of a revision: problems first."""
    parts = [model.problem, f"in use by {model.in_use}" if model.in_use else ""]
    parts += ["pinned" if model.pinned else "", ", ".join(model.recipes)]
    return "; ".join(part for part in parts if part)
