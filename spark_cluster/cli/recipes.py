"""`recipes`: what can be served, and what is known of it; `list`, `search` and `save`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import click
from rich.table import Table
from rich.text import Text

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, mark, painted, plain_table, styled
from spark_cluster.cli.options import Command, Group, Overriding
from spark_cluster.cli.predicted_speed import too_large
from spark_cluster.cli.recipes_to_serve import changed
from spark_cluster.cli.visible import visible
from spark_cluster.config import saved_recipe
from spark_cluster.config.launch import of_recipe as launched
from spark_cluster.config.overrides import text as overrides_text
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Measured
from spark_cluster.config.recipes import (
    FoundRecipe,
    RecipeFile,
    load_recipe,
    recipe_files,
    search_recipes,
)
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.plan.estimate import SMALLEST, Estimate, load_constants
from spark_cluster.plan.evidence import Evidence, by_others
from spark_cluster.plan.planner import Planner
from spark_cluster.plan.proposal import SizeVerdict, verdicts
from spark_cluster.plan.serving import ServingSetup, serving_of
from spark_cluster.plan.speed import CONTEXT, request_speed

_COMMANDS = {
    "list": "recipes:list_",
    "show": "recipes_show",
    "search": "recipes:search",
    "import": "recipes_import",
    "save": "recipes:save",
    "update": "recipes_import:update_command",
}
"""The commands in the order of --help; their modules are loaded when they are called."""

WIDE = 100
"""Columns of a terminal from which on a model's name fits in the list."""


@click.group(cls=Group, later=_COMMANDS)
def command() -> None:
    """List, show, search, import and save recipes: shipped ones, your own in recipes/, others'."""


@click.command("list", cls=Command)
def list_(app: App) -> None:
    """List what can be served, with expected and measured tokens/s.

    The figures are those of one request; what is expected is a range. A file that is wrong is
    listed with the reason. Your own recipes hide ours of the same name.
    """
    project = app.project
    found = list(recipe_files(project))
    rows = [(entry, expected(entry.recipe, project) if entry.recipe else {}) for entry in found]
    if app.as_json:
        documents = [
            document(entry, speeds, evidence(entry.recipe, project) if entry.recipe else {})
            for entry, speeds in rows
        ]
        app.print_json({"recipes": documents})
        return
    sources: dict[str, int] = {}
    app.console.print(_table(rows, sources, wide=app.console.width >= WIDE))
    for source, number in sources.items():
        app.console.print(painted(f"[{number}] {source}", "dim"), soft_wrap=True)
    for entry in found:
        if entry.error is not None:
            app.console.print(styled("{} {}", mark("fail"), entry.error), soft_wrap=True)


@click.command(cls=Command)
def search(
    app: App,
    *,
    words: Annotated[tuple[str, ...], {"metavar": "[WORD]..."}],
    most: Annotated[int, click.IntRange(1, 1000)] = 20,
) -> None:
    """Find recipes by name, model, description, quantization and tags: shipped ones, your own, and
    those of your registries as they were taken last.

    All words must occur; the best match comes first. For each: whether it works on one and on two
    idle Sparks, and the expected tokens/s of one request.

    Args:
        most (--limit): Recipes to show at most (default 20).
    """
    found = search_recipes(words, app.project)
    rows = [(one, _verdicts(app, one)) for one in found[:most]]
    if app.as_json:
        recipes = [found_document(one, answers) for one, answers in rows]
        app.print_json({"found": len(found), "recipes": recipes})
        return
    if not found:
        text = "no recipe has all these words; try fewer, or `recipes update` for registries"
        app.console.print(text)
        return
    _show_found(app, rows)
    if len(found) > most:
        app.console.print(painted(f"{len(found) - most} more: --limit {len(found)}", "dim"))


@click.command(cls=Command)
def save(app: App, *, name: str, base: str | None, force: bool, changes: Overriding) -> None:
    """Write recipes/NAME.yaml: another recipe, with the options of `up` as its own values.

    What was measured of the other one is left out where something is changed.

    Args:
        base (--from RECIPE): Recipe to start from (default: the inventory's).
        force: Replace a recipe of this name, or hide a shipped one.
    """
    origin = base or (None if app.inventory_is_missing else app.inventory.serve.recipe)
    if origin is None:
        raise UsageError(
            "no recipe is given to start from",
            hint="give --from RECIPE, or `serve: {recipe: NAME}` in the inventory",
        )
    recipe = changed(load_recipe(origin, app.project), changes)
    path = saved_recipe.save(recipe, name, app.project, force=force)
    if app.as_json:
        overrides = dict(recipe.overrides)
        app.print_json(
            {"name": name, "file": str(path), "from": recipe.name, "overrides": overrides}
        )
        return
    with_changes = f" with {overrides_text(recipe.overrides)}" if recipe.overrides else ""
    click.echo(visible(f"{path}: {recipe.name}{with_changes}"))
    click.echo(visible(f"Next: spark-cluster plan {name}"))


def headlines(recipe: Recipe) -> list[Measured]:
    """The decode speed of one request: each source's first figure for each size."""
    found: dict[tuple[int, str], Measured] = {}
    for measured in recipe.measured:
        if measured.decode_tok_s is not None and measured.concurrency == 1 and not measured.depth:
            found.setdefault((measured.tp, measured.source), measured)
    return sorted(found.values(), key=lambda m: m.tp)


def expected(recipe: Recipe, project: Project) -> dict[int, Estimate]:
    """Size to the predicted decode speed of one request; without what cannot be predicted, such as
    the speed of the lab's tiny model, which nothing here was fitted to.

    Raises:
        InvalidFile: the project's own calibration is wrong.
    """
    found: dict[int, Estimate] = {}
    if recipe.kind != "chat":  # it generates nothing
        return found
    constants = load_constants(project)
    for tp, serving in _servings(recipe, project):
        with contextlib.suppress(SparkClusterError):
            if serving.weights.step_bytes() >= SMALLEST:
                found[tp] = request_speed(recipe, serving, constants=constants)
    return found


def evidence(recipe: Recipe, project: Project) -> dict[int, Evidence]:
    """Size to what others measured of a recipe, with one user."""
    found = {}
    for tp, serving in _servings(recipe, project):
        with contextlib.suppress(SparkClusterError):
            launch = launched(recipe, tp)
            drafted = launch.drafted_tokens or 0
            if measured := by_others(launch, serving, users=1, context=CONTEXT, drafted=drafted):
                found[tp] = measured
    return found


def _servings(recipe: Recipe, project: Project) -> Iterator[tuple[int, ServingSetup]]:
    """Yield the usual sizes whose weights fit, without those whose model's shape is not known."""
    for tp in recipe.tensor_parallel.usual:
        try:
            serving = serving_of(recipe, tp, project.folder)
            fits = not too_large(serving)
        except SparkClusterError:
            continue
        if fits:
            yield tp, serving


def document(
    entry: RecipeFile,
    speeds: Mapping[int, Estimate],
    measured: Mapping[int, Evidence] | None = None,
) -> dict[str, Any]:
    """Return it as `recipes list --json` prints it.

    Args:
        speeds: size to what is predicted for it; `measured` to what others measured.
    """
    about: dict[str, Any] = {"name": entry.name, "path": str(entry.path), "own": entry.own}
    if entry.recipe is None:
        return {**about, "valid": False, "error": entry.error.to_dict() if entry.error else None}
    recipe = entry.recipe
    return {
        **about,
        "valid": True,
        "description": recipe.description,
        "model": recipe.model.name,
        "kind": recipe.kind,
        "base": recipe.model.base,
        "quantization": recipe.model.quantization,
        "tensor_parallel": recipe.tensor_parallel.model_dump(exclude_none=True),
        "expected_tok_s": {str(tp): speed.rounded() for tp, speed in speeds.items()},
        "measured_by_others": {
            str(tp): one.beside(speeds[tp]) for tp, one in (measured or {}).items() if tp in speeds
        },
        "measured_tok_s": [
            {"tp": m.tp, "decode_tok_s": m.decode_tok_s, "source": m.source, "note": m.note}
            for m in headlines(recipe)
        ],
    }


def found_document(one: FoundRecipe, answers: list[SizeVerdict]) -> dict[str, Any]:
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
        "verdicts": {str(verdict.tp): verdict for verdict in answers},
    }


def _verdicts(app: App, one: FoundRecipe) -> list[SizeVerdict]:
    try:
        recipe = load_recipe(one.reference, app.project)
    except SparkClusterError as error:
        return [SizeVerdict(1, None, error.message)]
    return list(verdicts(recipe, Planner(app.project)))


def _show_found(app: App, rows: list[tuple[FoundRecipe, list[SizeVerdict]]]) -> None:
    """Two lines a recipe: a name of a registry is too long for a column of a table."""
    for one, answers in rows:
        own = " (yours)" if one.origin == "yours" else ""
        weights = one.fields.get("quantization", "")
        model = styled("[dim]{} {}[/]", one.fields.get("model", ""), weights)
        app.console.print(styled("[cyan]{}[/]{}  {}", one.reference, own, model), soft_wrap=True)
        lines = [_answer(verdict) for verdict in answers] or [painted("3 Sparks or more", "dim")]
        app.console.print(styled("  {}", joined(lines, "\n  ")), soft_wrap=True)


def _answer(verdict: SizeVerdict) -> Text:
    sparks = "one Spark" if verdict.tp == 1 else "two Sparks"
    if verdict.feasible is None:
        return styled("{}: [dim]not known ({})[/]", sparks, verdict.reason)
    if not verdict.feasible:
        return styled("{}: [red]no[/] [dim]({})[/]", sparks, verdict.reason)
    if verdict.decode is None:
        return styled("{}: [green]yes[/]", sparks)
    speed = f"{verdict.decode.low:.0f} to {verdict.decode.high:.0f}"
    return styled("{}: [green]yes[/], {} tok/s", sparks, speed)


def _table(
    rows: list[tuple[RecipeFile, dict[int, Estimate]]], sources: dict[str, int], *, wide: bool
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
    def one(measured: Measured) -> Text:
        number = sources.setdefault(measured.source, len(sources) + 1)
        figure = styled("{:.1f} [dim]{}[/]", measured.decode_tok_s, f"[{number}]")
        return _sized(measured.tp, figure)

    return joined(one(measured) for measured in headlines(recipe))


def _sized(tp: int, text: Text) -> Text:
    return text if tp == 1 else styled("[dim]TP={}[/] {}", tp, text)
