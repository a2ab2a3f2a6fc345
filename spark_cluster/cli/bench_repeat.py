"""`bench repeat`: a recorded run, run again from its record."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App, allowing, changing
from spark_cluster.cli.bench_run import KEEP, OUT, RUN, STOP, TRUST, go_on
from spark_cluster.cluster.bench import RESULTS, refuse_second_run

if TYPE_CHECKING:
    from spark_cluster.bench.repeat import Original
    from spark_cluster.bench.run import BenchRun
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.runner.options import Options
    from spark_cluster.runner.play import Play


@click.command()
@RUN
@TRUST
@OUT
@KEEP
@STOP
@allowing
@changing
@click.pass_obj
def repeat(
    app: App,
    folder: Path,
    trust_recipes: bool,
    out: Path | None,
    keep: bool,
    stop_at_first_failure: bool,
    allow: Allowances,
    exit_code: bool,
    options: Options,
) -> None:
    """Run a recorded run again, also somebody else's; RUN is its folder, or its run.json.

    Suite and recipes are taken from the record, not from your project. What would be run is shown,
    and what differs here; --check ends there. `bench attach` continues the new run.
    """
    from spark_cluster.bench.repeat import foreign_setups, load_original, must_be_trusted
    from spark_cluster.config.allowance_checks import must_be_allowed

    refuse_second_run(out)
    original = load_original(folder, app.allowances(allow))
    foreign = foreign_setups(original, app.project)
    made = _begin(app, original, folder, out)
    _show(app, made, original, foreign)
    for recipe in original.recipes.values():
        must_be_allowed(recipe)
    if not trust_recipes and not options.check:
        must_be_trusted(original, app.project, "above")

    app.connect_early()

    def before(play: Play) -> None:
        _compare(play, made, original)
        if not options.check:
            original.save(made.folder)

    how = {"keep": keep, "stop_at_first_failure": stop_at_first_failure}
    go_on(app, made, options, how, exit_code=exit_code, before=before)


def _begin(app: App, original: Original, folder: Path, out: Path | None) -> BenchRun:
    """Return the new run."""
    from spark_cluster import __version__
    from spark_cluster.bench import generators
    from spark_cluster.bench.repeat import expansion_of
    from spark_cluster.bench.run import BenchRun

    theirs, suite = original.record, original.suite
    record = theirs.model_copy(
        update={
            "id": app.run_id,
            "spark_cluster": __version__,
            "started": datetime.now(UTC),
            "finished": None,
            "status": "running",
            "tool": generators.of(suite).tool(suite),
            "client": app.inventory.head.name,
            "round_trip_ms": None,
            "nodes": (),
            "setups": (),
            "cells": (),
            "project_commit": "",
            "command": ("spark-cluster", "bench", "repeat", str(folder)),
            "repeats": original.repeats(),
        }
    )
    expansion = expansion_of(original, len(app.nodes))
    return BenchRun(record, suite, expansion, out or Path(RESULTS) / record.id)


def _show(app: App, made: BenchRun, original: Original, foreign: list[str]) -> None:
    """Show what would be run: every recipe that is not the user's own is shown whole."""
    from spark_cluster.bench.describe import text_of
    from spark_cluster.bench.expansion import cells_text
    from spark_cluster.cli.console import painted, styled

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
    for name in foreign:
        console.print(styled("[yellow]the record's own recipe of[/] {}:", name), soft_wrap=True)
        console.print(painted(text_of(original.recipes[name]), "dim"), soft_wrap=True)


def _compare(play: Play, made: BenchRun, original: Original) -> None:
    """Pin the images of the record where the nodes can have them, and show what differs here."""
    from spark_cluster.bench import generators, image_pins
    from spark_cluster.bench.repeat import differences, pin

    chosen = image_pins.choose(play, original.record.setups, original.recipes)
    pin(made, original, chosen.images, len(play.nodes))
    tool = generators.of(original.suite).tool(original.suite).version
    lines = [*differences(original.record, play.nodes, tool), *chosen.differences]
    for line in lines:
        play.note(f"differs: {line}")
    for server, digest in chosen.images.items():
        play.note(f"{server}: the image is pinned to {digest}, as recorded")
    if not lines:
        play.note("these nodes do not differ from what the record says of its nodes")
