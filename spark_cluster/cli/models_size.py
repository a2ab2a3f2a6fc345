"""`models size`: what the models take on each node, by recipe and by state."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_nodes import model_nodes, needed_by_recipes
from spark_cluster.node.sizes import gigabytes

if TYPE_CHECKING:
    from spark_cluster.engine.copies.upkeep import Pruned, StoredModels


@dataclass(frozen=True)
class ModelSizes:
    """The space that models take on a node, in bytes.

    Attributes:
        size: all contents, each counted once.
        recipes: recipe to the sizes of its models; two recipes can need the same.
        prunable: what `models prune --apply` would free.
        unfinished: half files.
        unused: contents that no revision has.
        free: free on the disk.
    """

    node: str
    size: int
    recipes: dict[str, int]
    prunable: int
    unfinished: int
    unused: int
    free: int


@click.command()
@click.pass_obj
def command(app: App) -> None:
    """Show what the models take on each node, by recipe, and what pruning would free."""
    from spark_cluster.engine.copies.upkeep import prune, stored

    needs = needed_by_recipes(app)
    with model_nodes(app) as nodes:
        found, prunable = stored(nodes, needs), prune(nodes, needs)
    sizes = [sizes_of(*pair) for pair in zip(found, prunable, strict=True)]
    if app.as_json:
        app.print_json({"nodes": [dataclasses.asdict(one) for one in sizes]})
        return
    for one in sizes:
        _show(app, one)


def sizes_of(found: StoredModels, pruned: Pruned) -> ModelSizes:
    """Return the sums of one node."""
    recipes: dict[str, int] = {}
    for model in found.models:
        for name in model.recipes:
            recipes[name] = recipes.get(name, 0) + model.size
    rest = (found.unfinished, found.unused, found.free)
    return ModelSizes(found.node, found.size, recipes, pruned.freed, *rest)


def _show(app: App, sizes: ModelSizes) -> None:
    from spark_cluster.cli.console import styled

    whole, free = gigabytes(sizes.size), gigabytes(sizes.free)
    line = styled("[bold]{}[/]  {} in models, {} free on the disk", sizes.node, whole, free)
    app.console.print(line)
    for name, size in sorted(sizes.recipes.items()):
        app.console.print(styled("  {}  recipe {}", gigabytes(size).rjust(9), name))
    for size, what in (
        (sizes.prunable, "that `spark-cluster models prune --apply` would free"),
        (sizes.unfinished, "in half files, with which a pull goes on"),
        (sizes.unused, "that no revision has"),
    ):
        if size:
            app.console.print(styled("  {}  {}", gigabytes(size).rjust(9), what))
