"""`recipes search`: recipes by words, with a verdict for one and two Sparks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, painted, styled

if TYPE_CHECKING:
    from rich.text import Text

    from spark_cluster.loader.recipe_search import Candidate
    from spark_cluster.planning.verdict import Verdict


@click.command("search")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option(
    "--limit",
    "most",
    type=click.IntRange(1, 1000),
    default=20,
    help="Recipes to show at most (default 20).",
)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], most: int) -> None:
    """Find recipes by name, model, description, quantization and tags: shipped ones, your own, and
    those of your registries as they were taken last.

    All words must occur; the best match comes first. For each: whether it works on one and on two
    idle Sparks, and the expected tokens/s of one request.
    """
    from spark_cluster.loader.recipe_search import search

    app: App = ctx.obj
    found = search(words, app.project)
    rows = [(one, _verdicts(app, one)) for one in found[:most]]
    if app.as_json:
        recipes = [document(one, verdicts) for one, verdicts in rows]
        app.print_json({"found": len(found), "recipes": recipes})
        return

    if not found:
        text = "no recipe has all these words; try fewer, or `recipes update` for registries"
        app.console.print(text)
        return
    _show(app, rows)
    if len(found) > most:
        app.console.print(painted(f"{len(found) - most} more: --limit {len(found)}", "dim"))


def document(one: Candidate, verdicts: list[Verdict]) -> dict[str, Any]:
    """Return it as `recipes search --json` prints it."""
    fields = one.fields
    return {
        "recipe": one.reference,
        "origin": one.origin,
        "model": fields.get("model", ""),
        "base": fields.get("base", ""),
        "description": fields.get("description", ""),
        "quantization": fields.get("quantization", ""),
        "tags": fields.get("tags", "").split(),
        "verdicts": {str(verdict.tp): verdict.to_dict() for verdict in verdicts},
    }


def _verdicts(app: App, one: Candidate) -> list[Verdict]:
    from spark_cluster.errors import SparkClusterError
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.planning.planner import Planner
    from spark_cluster.planning.verdict import Verdict, verdicts

    try:
        recipe = load_recipe(one.reference, app.project)
    except SparkClusterError as error:
        return [Verdict(1, None, error.message)]
    return list(verdicts(recipe, Planner(app.project)))


def _show(app: App, rows: list[tuple[Candidate, list[Verdict]]]) -> None:
    """Two lines a recipe: a name of a registry is too long for a column of a table."""

    for one, verdicts in rows:
        own = " (yours)" if one.origin == "yours" else ""
        weights = one.fields.get("quantization", "")
        model = styled("[dim]{} {}[/]", one.fields.get("model", ""), weights)
        app.console.print(styled("[cyan]{}[/]{}  {}", one.reference, own, model), soft_wrap=True)
        answers = [_answer(verdict) for verdict in verdicts] or [painted("3 Sparks or more", "dim")]
        app.console.print(styled("  {}", joined(answers, "\n  ")), soft_wrap=True)


def _answer(verdict: Verdict) -> Text:

    sparks = "one Spark" if verdict.tp == 1 else "two Sparks"
    if verdict.feasible is None:
        return styled("{}: [dim]not known ({})[/]", sparks, verdict.reason)
    if not verdict.feasible:
        return styled("{}: [red]no[/] [dim]({})[/]", sparks, verdict.reason)
    if verdict.decode is None:
        return styled("{}: [green]yes[/]", sparks)
    speed = f"{verdict.decode.low:.0f} to {verdict.decode.high:.0f}"
    return styled("{}: [green]yes[/], {} tok/s", sparks, speed)
