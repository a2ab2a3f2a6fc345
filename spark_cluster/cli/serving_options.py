"""What `up`, `swap` and `down` take from the command line in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.override_options import Changes, changed

if TYPE_CHECKING:
    from spark_cluster.cli.app import App
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.config.recipe import Recipe

sized = click.option(
    "--tp",
    type=int,
    metavar="N",
    help="Number of nodes to split each layer over (default: the recipe's, else the largest power "
    "of two that there are nodes for).",
)

forced = click.option(
    "--force", is_flag=True, help="Launch even if the plan says that the configuration cannot work."
)

unloading = click.option(
    "--unload",
    type=click.Choice(["ollama"]),
    multiple=True,
    help="Also unload the models of this program, through its own interface; repeatable.",
)


def recipe_to_serve(app: App, name: str, changes: Changes, allow: Allowances) -> Recipe:
    """Return a recipe that may be served, with the changes of the command line.

    Raises:
        SparkClusterError: it is wrong, is another's, or asks for what is not allowed.
    """
    from spark_cluster.config.allowance_checks import must_be_allowed
    from spark_cluster.config.model_kind import must_be_served
    from spark_cluster.loader.recipes import load_recipe

    recipe = changed(load_recipe(name, app.project, app.allowances(allow)), changes)
    app.project.must_be_own(app.project.resolve("recipes", name), f"recipe {recipe.name}")
    must_be_served(recipe.kind, f"recipe {recipe.name}")
    must_be_allowed(recipe)
    return recipe


def size_on(app: App, recipe: Recipe, tp: int | None) -> int:
    """Return the tensor-parallel size; what cannot be is refused before any node is asked.

    Raises:
        Refused: the recipe does not do this size, or there are too few nodes.
    """
    from spark_cluster.serving.nodes import serving

    size = tp if tp is not None else recipe.size_for(len(app.nodes))
    recipe.check_size(size)
    serving(app.nodes, size, recipe.nodes_for(size))
    return size
