"""`recipes`: what can be served, and what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, mark, painted, plain_table, styled
from spark_cluster.cli.groups import Group

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from spark_cluster.cli.recipe_list import Entry
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import Measured
    from spark_cluster.planning.speed.estimate import Estimate


_LATER = {
    "search": "recipes_search",
    "import": "recipes_import",
    "save": "recipes_save",
    "update": "recipes_update",
}
"""Commands that are loaded when they are called, and their modules: they bring parsers along."""


WIDE = 100
"""Columns of a terminal from which on a model's name fits in the list."""


@click.group(cls=Group, later=_LATER)
def command() -> None:
    """List, show, search, import and save recipes: shipped ones, your own in recipes/, others'."""


@command.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """List what can be served, with expected and measured tokens/s.

    The figures are those of one request; what is expected is a range. A file that is wrong is
    listed with the reason. Your own recipes hide ours of the same name.
    """
    from spark_cluster.cli.recipe_list import document, entries, evidence, expected

    app: App = ctx.obj
    project = app.project
    found = list(entries(project))
    rows = [(entry, expected(entry.recipe, project) if entry.recipe else {}) for entry in found]
    if app.as_json:
        documents = [
            document(entry, speeds, evidence(entry.recipe, project) if entry.recipe else {})
            for entry, speeds in rows
        ]
        app.print_json({"recipes": documents})
    else:
        _list(app, rows)


@command.command()
@click.argument("name")
@click.option("--tp", type=click.IntRange(min=1), help="Tensor-parallel size (default: fewest).")
@click.pass_context
def show(ctx: click.Context, name: str, tp: int | None) -> None:
    """Show all of a recipe and the command line that it becomes.

    NAME is the name of a recipe, a file, or @REGISTRY/RECIPE.
    """
    from spark_cluster.cli.recipe_list import evidence, expected
    from spark_cluster.loader.recipes import load_recipe

    app: App = ctx.obj
    recipe = load_recipe(name, app.project)
    size = tp or recipe.tensor_parallel.min
    args = recipe.args_for(size)
    speeds = expected(recipe, app.project)
    others = evidence(recipe, app.project)
    if app.as_json:
        whole = recipe.model_dump(mode="json", exclude_none=True)
        line = list(recipe.dialect.command(recipe.model.node_path, tuple(args)))
        shown = {str(n): speed.to_dict() for n, speed in speeds.items()}
        found = {str(n): one.to_dict(speeds[n]) for n, one in others.items() if n in speeds}
        about = {"expected_tok_s": shown, "measured_by_others": found}
        app.print_json({"recipe": whole, "tp": size, "command": line, **about})
    else:
        from spark_cluster.cli.recipes_show import show_recipe

        show_recipe(app.console, recipe, size, args, speeds, others)


def _list(app: App, rows: list[tuple[Entry, dict[int, Estimate]]]) -> None:

    sources: dict[str, int] = {}
    app.console.print(_table(rows, sources, wide=app.console.width >= WIDE))
    for source, number in sources.items():
        app.console.print(painted(f"[{number}] {source}", "dim"), soft_wrap=True)
    for entry, _ in rows:
        if entry.error is not None:
            app.console.print(styled("{} {}", mark("fail"), entry.error), soft_wrap=True)


def _table(
    rows: list[tuple[Entry, dict[int, Estimate]]], sources: dict[str, int], *, wide: bool
) -> Table:
    """Return the list; a wide one has each recipe's model below its name, and its sizes."""

    titles = ("weights", *(["TP"] if wide else []), "expected\ntok/s", "measured\ntok/s")
    table = plain_table("recipe", *titles, whole=("recipe",), fold=titles, wide=True)
    for entry, speeds in rows:
        name = styled("{}[cyan]{}[/]", entry.name, " (yours)" if entry.own else "")
        if entry.recipe is None:
            table.add_row(name, painted("invalid", "red"))
            continue
        recipe = entry.recipe
        sizes = str(recipe.tensor_parallel).replace(" to ", "-").replace(" or more", "+")
        table.add_row(
            joined([name, painted(recipe.model.name, "dim")]) if wide else name,
            recipe.model.quantization or "",
            *([sizes] if wide else []),
            _speeds(speeds),
            _measured(recipe, sources),
        )
    return table


def _speeds(speeds: dict[int, Estimate]) -> Text:

    lines = [_sized(tp, painted(_span(one))) for tp, one in speeds.items()]
    return joined(lines or [painted("not predicted", "dim")])


def _span(speed: Estimate) -> str:
    """A range in few characters: it stands in a table of 80 columns."""
    digits = 0 if speed.low >= 10 else 1
    return f"{speed.low:.{digits}f}-{speed.high:.{digits}f}"


def _measured(recipe: Recipe, sources: dict[str, int]) -> Text:
    from spark_cluster.cli.recipe_list import headlines

    def one(measured: Measured) -> Text:
        number = sources.setdefault(measured.source, len(sources) + 1)
        figure = styled("{:.1f} [dim]{}[/]", measured.decode_tok_s, f"[{number}]")
        return _sized(measured.tp, figure)

    return joined(one(measured) for measured in headlines(recipe))


def _sized(tp: int, text: Text) -> Text:

    return text if tp == 1 else styled("[dim]TP={}[/] {}", tp, text)
