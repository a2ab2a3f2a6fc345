"""`recipes save`: a recipe of one's own, made of another one and changed arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.override_options import overriding
from spark_cluster.cli.recipes_to_serve import Changes, changed
from spark_cluster.cli.visible import visible
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from spark_cluster.config.recipe import Recipe


@click.command()
@click.argument("name")
@click.option(
    "--from", "base", metavar="RECIPE", help="Recipe to start from (default: the inventory's)."
)
@click.option("--force", is_flag=True, help="Replace a recipe of this name, or hide a shipped one.")
@overriding
@click.pass_obj
def command(app: App, name: str, base: str | None, force: bool, changes: Changes) -> None:
    """Write recipes/NAME.yaml: another recipe, with the options of `up` as its own values.

    What was measured of the other one is left out where something is changed.
    """
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.loader.saved_recipe import save

    origin = base or (None if app.inventory_is_missing else app.inventory.serve.recipe)
    if origin is None:
        raise UsageError(
            "no recipe is given to start from",
            hint="give --from RECIPE, or `serve: {recipe: NAME}` in the inventory",
        )
    recipe = changed(load_recipe(origin, app.project), changes)
    path = save(recipe, name, app.project, force=force)
    _show(app, path, recipe, name)


def _show(app: App, path: Path, recipe: Recipe, name: str) -> None:
    if app.as_json:
        overrides = dict(recipe.overrides)
        app.print_json(
            {"name": name, "file": str(path), "from": recipe.name, "overrides": overrides}
        )
        return
    from spark_cluster.config.overrides import text

    with_changes = f" with {text(recipe.overrides)}" if recipe.overrides else ""
    click.echo(visible(f"{path}: {recipe.name}{with_changes}"))
    click.echo(visible(f"Next: spark-cluster plan {name}"))
