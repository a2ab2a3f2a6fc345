"""`models prune`: remove the least recently used models."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.finite import Finite
from spark_cluster.cli.models_nodes import model_nodes, needed_by_recipes, short
from spark_cluster.node.sizes import gigabytes

if TYPE_CHECKING:
    from spark_cluster.engine.copies.upkeep import Pruned

DAY_S = 86400.0


@click.command()
@click.argument("models", nargs=-1, metavar="[ORG/NAME[@REVISION]]...")
@click.option("--free", type=Finite(min=0), default=0.0, metavar="GB", help="Stop at so much.")
@click.option(
    "--unused-for",
    type=Finite(min=0),
    default=0.0,
    metavar="DAYS",
    help="Remove only what was not used for so long.",
)
@click.option("--apply", is_flag=True, help="Remove them; without it they are only listed.")
@click.pass_obj
def command(
    app: App, models: tuple[str, ...], free: float, unused_for: float, *, apply: bool
) -> None:
    """List the models that can go, the least recently used first; with --apply, remove them.

    Never what the inventory's recipe or one of your own recipes needs, what is pinned, what a
    process was started with, or what is being downloaded.
    """
    from spark_cluster.engine.copies.upkeep import prune

    needs = needed_by_recipes(app)
    size, seconds = int(free * 1e9), unused_for * DAY_S
    with model_nodes(app) as nodes:
        found = prune(nodes, needs, only=models, free=size, unused_s=seconds, apply=apply)
    if app.as_json:
        app.print_json({"applied": apply, "nodes": [dataclasses.asdict(one) for one in found]})
        return
    for one in found:
        _show(app, one, apply=apply)
    if not apply and any(one.removed for one in found):
        app.console.print("nothing was removed yet: --apply does it")


def _show(app: App, found: Pruned, *, apply: bool) -> None:
    from spark_cluster.cli.console import styled

    did = "freed" if apply else "would be freed"
    app.console.print(styled("[bold]{}[/]  {} {}", found.node, gigabytes(found.freed), did))
    verb = "removed" if apply else "would go"
    for model in found.removed:
        name, size = short(model.repository, model.commit), gigabytes(model.size)
        app.console.print(styled("  {}  {}  {}", verb, name, size), soft_wrap=True)
    for kept in found.kept:
        name = short(kept.repository, kept.commit)
        app.console.print(styled("  stays  {}  [dim]{}[/]", name, kept.reason), soft_wrap=True)
