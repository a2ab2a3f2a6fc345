"""A recorded run that is run again: what is shown of it, and what differs here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_cluster.bench import image_pins
from spark_cluster.bench.describe import text_of
from spark_cluster.bench.expansion import cells_text
from spark_cluster.bench.repeat import (
    Original,
    differences,
    expansion_of,
    foreign_setups,
    load_original,
    must_be_trusted,
    pin,
)
from spark_cluster.bench.run import BenchRun
from spark_cluster.cli.app import App
from spark_cluster.cli.bench_measure import RESULTS, new_record, refuse_second_run
from spark_cluster.cli.console import painted, styled
from spark_cluster.config.allowances import Allowances
from spark_cluster.config.recipe_settings import must_be_allowed
from spark_cluster.runner.options import Options
from spark_cluster.runner.play import Play


def begin(
    app: App,
    folder: Path,
    allow: Allowances,
    options: Options,
    *,
    trust_recipes: bool,
    out: Path | None,
) -> tuple[BenchRun, Callable[[Play], None]]:
    """Show a recorded run that is to be run again; connect to the nodes.

    Args:
        folder: of the run, or its record.

    Returns:
        The new run, and what is to be done when the nodes are connected, before it measures.

    Raises:
        UsageError: there is no such run, or `out` holds one already.
        InvalidFile: the record, its suite or a recipe in it is wrong.
        Refused: a recipe in it is not the user's own, and is not trusted.
    """
    refuse_second_run(out)
    original = load_original(folder, app.allowances(allow))
    made = _new_run(app, original, folder, out)
    _show(app, made, original)
    for recipe in original.recipes.values():
        must_be_allowed(recipe)
    if not trust_recipes and not options.check:
        must_be_trusted(original, app.project, "above")

    def before(play: Play) -> None:
        _compare(play, made, original)
        if not options.check:
            original.save(made.folder)

    return made, before


def _new_run(app: App, original: Original, folder: Path, out: Path | None) -> BenchRun:
    theirs, words = original.record, ("repeat", str(folder))
    record = new_record(app.cluster, original.suite, theirs.recipes, words, app.run_id)
    record = record.model_copy(
        update={"suite_text": theirs.suite_text, "repeats": original.repeats()}
    )
    expansion = expansion_of(original, len(app.nodes))
    return BenchRun(record, original.suite, expansion, out or Path(RESULTS) / record.id)


def _show(app: App, made: BenchRun, original: Original) -> None:
    """Show what would be run: every recipe that is not the user's own is shown whole."""
    console, record = app.console, original.record
    when = f"{record.started:%Y-%m-%d}, {cells_text(len(record.cells))}, spark-cluster"
    title = styled("repeats [bold]{}[/] of suite {}", record.id, record.suite)
    console.print(title + styled(" [dim]({} {})[/]", when, record.spark_cluster), soft_wrap=True)
    for setup in made.expansion.setups:
        cells = [cell for cell in made.expansion.cells if cell.setup == setup.id and not cell.skip]
        recipe = original.recipes.get(setup.id)
        about = f"{cells_text(len(cells))}, tp {setup.tp}"
        if recipe is not None:
            about += f", model {recipe.model.name}, image {recipe.image.reference or 'none'}"
        line = styled("  [bold]{}[/]: {}", setup.id, about)
        console.print(line, soft_wrap=True)
        if setup.skip:
            console.print(styled("    [yellow]left out:[/] {}", setup.skip), soft_wrap=True)
    for name in foreign_setups(original, app.project):
        console.print(styled("[yellow]the record's own recipe of[/] {}:", name), soft_wrap=True)
        console.print(painted(text_of(original.recipes[name]), "dim"), soft_wrap=True)


def _compare(play: Play, made: BenchRun, original: Original) -> None:
    """Pin the images of the record where the nodes can have them, and show what differs here."""
    chosen = image_pins.choose(play, original.record.setups, original.recipes)
    pin(made, original, chosen.images, len(play.nodes))
    found = differences(original.record, play.nodes, made.record.tool.version)
    lines = [*found, *chosen.differences]
    for line in lines:
        play.note(f"differs: {line}")
    for server, digest in chosen.images.items():
        play.note(f"{server}: the image is pinned to {digest}, as recorded")
    if not lines:
        play.note("these nodes do not differ from what the record says of its nodes")
