"""`bench`: its group; `run` and with it repeat, attach, status, stop and fetch; `fabric`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

import click

from spark_cluster.bench.describe import text_of
from spark_cluster.bench.fabric_run import EXPECTED_GB_S, FILE, FabricRecord
from spark_cluster.bench.on_node import merge
from spark_cluster.bench.record import load_record, save_document
from spark_cluster.bench.repeat import (
    SOURCE,
    Original,
    choose,
    differences,
    expansion_of,
    foreign_setups,
    load_original,
    must_be_own,
    must_be_trusted,
    pin,
)
from spark_cluster.bench.report.rendering import size_text
from spark_cluster.bench.report.tables import declared
from spark_cluster.bench.steps import BenchRun, measured
from spark_cluster.bench.steps import fetch as fetch_step
from spark_cluster.bench.steps import stop as stop_run
from spark_cluster.cli.app import App
from spark_cluster.cli.bench_measure import (
    RESULTS,
    BenchResult,
    measure,
    new_record,
    of_folder,
    of_record,
    refuse_second_run,
)
from spark_cluster.cli.bench_results import console_table, show_run
from spark_cluster.cli.console import painted, styled
from spark_cluster.cli.options import Allowing, Changing, DeclaredCommand, DeclaredGroup
from spark_cluster.cli.serving import recipe_for_ray
from spark_cluster.config.extension import Allowances
from spark_cluster.config.recipe_settings import must_be_allowed
from spark_cluster.errors import UsageError, VerificationFailed
from spark_cluster.node.output import counted
from spark_cluster.plan.estimate import Constants
from spark_cluster.runner.events import Options
from spark_cluster.runner.play import Play

COMMANDS = {
    "suites": "bench_results:suites",
    "run": "bench:run",
    "attach": "bench:attach",
    "status": "bench:status",
    "stop": "bench:stop",
    "fetch": "bench:fetch",
    "repeat": "bench:repeat",
    "fabric": "bench:fabric",
    "show": "bench_results:show",
    "compare": "bench_results:compare",
    "report": "bench_results:report",
}
"""Name to module and function, in the order of --help."""


Out = Annotated[
    Path | None, f"(FOLDER): Folder for the results; by default one of the run's id in {RESULTS}/."
]
Keep = Annotated[bool, "Leave the last server up after the run."]
Stop = Annotated[
    bool, "End the run at the first server that does not start, instead of failing its cells."
]
Trust = Annotated[
    bool,
    "Run recipes of a repeated record that are not yours: they start containers as root on the "
    "nodes. `bench repeat RUN --check` shows them.",
]
RunFolder = Annotated[Path, click.Path(path_type=Path, exists=True), {"metavar": "RUN"}]


@click.group(cls=DeclaredGroup, later=COMMANDS)
def bench() -> None:
    """Measure suites of loads on servers started for the purpose, compare runs, and report."""


class How(TypedDict):
    """The options of a run."""

    out: Out
    keep: Keep
    stop_at_first_failure: Stop
    allow: Allowing
    options: Changing


@click.command(cls=DeclaredCommand)
def run(
    app: App, suite: str, recipes: tuple[str, ...], trust_recipes: Trust, **how: Unpack[How]
) -> None:
    """Measure a suite: bring each server up, verify it, measure it, and take it down.

    The cells are measured by a systemd unit on the head, which goes on without this laptop; `bench
    attach RUN` continues the run and measures only what has no result yet. SUITE may be the
    run.json of a run, which is then run again as `bench repeat` does.

    Args:
        recipes (--recipe NAME): Recipe to measure, instead of the suite's; repeatable.
    """
    if suite.endswith(".json"):
        if recipes:
            raise UsageError(
                f"{suite} is a recorded run, which has recipes of its own", hint="omit --recipe"
            )
        _run_again(app, Path(suite), trust_recipes=trust_recipes, **how)
        return
    _leave(app, app.cluster.bench(suite, recipes, **how), how["options"])


@click.command(cls=DeclaredCommand)
def repeat(app: App, folder: RunFolder, trust_recipes: Trust, **how: Unpack[How]) -> None:
    """Repeat a recorded run, your own or someone else's; RUN is its folder or its run.json.

    Suite and recipes are taken from the record, not from your project. It shows what would be run
    and what differs here; --check ends there. `bench attach` continues the new run.
    """
    _run_again(app, folder, trust_recipes=trust_recipes, **how)


def _run_again(
    app: App,
    folder: Path,
    *,
    trust_recipes: bool,
    out: Path | None,
    allow: Allowances,
    options: Options,
    **how: bool,
) -> None:
    """Show a recorded run, and run it again.

    Args:
        folder: of the run, or its record.

    Raises:
        UsageError: there is no such run, or `out` holds one already.
        InvalidFile: the record, its suite or a recipe in it is wrong.
        Refused: a recipe in it is not the user's own, and is not trusted.
    """
    refuse_second_run(out)
    original = load_original(folder, app.cluster.allowances(allow))
    made = _new_run(app, original, folder, out)
    _show_original(app, made, original)
    for recipe in original.recipes.values():
        must_be_allowed(recipe)
    if not trust_recipes and not options.check:
        must_be_trusted(original, app.project, "above")

    def before(play: Play) -> None:
        _compare(play, made, original)
        if not options.check:
            original.save(made.folder)

    go_on(app, made, options, how, before=before)


def _new_run(app: App, original: Original, folder: Path, out: Path | None) -> BenchRun:
    theirs, words = original.record, ("repeat", str(folder))
    text, repeats = theirs.suite_text, original.repeats()
    more = {"id": app.run_id, "suite_text": text, "repeats": repeats}
    record = new_record(app.cluster, original.suite, theirs.recipes, words, **more)
    expansion = expansion_of(original, len(app.nodes))
    return BenchRun(record, original.suite, expansion, out or Path(RESULTS) / record.id)


def _show_original(app: App, made: BenchRun, original: Original) -> None:
    """Show what would be run: every recipe that is not the user's own is shown whole."""
    console, record = app.console, original.record
    when = f"{record.started:%Y-%m-%d}, {counted(len(record.cells), 'cell')}, spark-cluster"
    title = styled("repeats [bold]{}[/] of suite {}", record.id, record.suite)
    console.print(title + styled(" [dim]({} {})[/]", when, record.spark_cluster))
    for setup in made.expansion.setups:
        cells = [cell for cell in made.expansion.cells if cell.setup == setup.id and not cell.skip]
        recipe = original.recipes.get(setup.id)
        about = f"{counted(len(cells), 'cell')}, tp {setup.tp}"
        if recipe is not None:
            about += f", model {recipe.model.name}, image {recipe.image.reference or 'none'}"
        console.say("  [bold]{}[/]: {}", setup.id, about)
        if setup.skip:
            console.say("    [yellow]left out:[/] {}", setup.skip)
    for name in foreign_setups(original, app.project):
        console.say("[yellow]the record's own recipe of[/] {}:", name)
        console.print(painted(text_of(original.recipes[name]), "dim"), soft_wrap=True)


def _compare(play: Play, made: BenchRun, original: Original) -> None:
    """Pin the images of the record where the nodes can have them, and show what differs here."""
    chosen = choose(play, original.record.setups, original.recipes)
    pin(made, original, chosen.images, len(play.nodes))
    found = differences(original.record, play.nodes, made.record.tool.version)
    lines = [*found, *chosen.differences]
    for line in lines:
        play.note(f"differs: {line}")
    for server, digest in chosen.images.items():
        play.note(f"{server}: the image is pinned to {digest}, as recorded")
    if not lines:
        play.note("these nodes do not differ from what the record says of its nodes")


@click.command(cls=DeclaredCommand)
def attach(
    app: App,
    *,
    folder: RunFolder,
    trust_recipes: Trust,
    keep: Keep,
    stop_at_first_failure: Stop,
    allow: Allowing,
    options: Changing,
) -> None:
    """Continue a run that was interrupted, stopped or has failed; RUN is its folder."""
    made = of_record(app.cluster, load_record(folder), folder, allow)
    if not (trust_recipes or options.check):
        _must_be_trusted(app, made, allow)
    how = {"keep": keep, "stop_at_first_failure": stop_at_first_failure}
    go_on(app, made, options, how)


def _must_be_trusted(app: App, made: BenchRun, allow: Allowances) -> None:
    """Look whether a run's folder says what is to run: it may be somebody else's."""
    if made.record.repeats is not None:
        source = made.folder / SOURCE
        original = load_original(source, app.cluster.allowances(allow))
        must_be_trusted(original, app.project, f"with `bench repeat {source} --check`")
    elif not made.folder.resolve().is_relative_to(Path(RESULTS).resolve()):
        must_be_own(made, app.project)


@click.command(cls=DeclaredCommand)
def status(app: App, *, folder: RunFolder) -> None:
    """Show how many cells have a result here, and which server the nodes measure now."""
    made = of_folder(app.cluster, folder)
    record, cells = made.record, made.expansion.cells
    found: dict[str, Any] = {
        "run": record.id,
        "status": record.status,
        "cells": len(cells),
        "done": len({cell.id for cell in record.cells} & {cell.id for cell in cells}),
        "failed": sum(cell.status == "failed" for cell in record.cells),
        "measuring": "",
    }
    failed = f", {found['failed']} of them failed" if found["failed"] else ""
    done = f"{found['done']} of {len(cells)} cells have a result on this laptop"
    if not app.as_json:  # before the nodes are asked, which may not answer
        app.console.say("{}: {}{}", record.id, done, failed)
    if made.pending:
        with _reached(app, "bench status") as play:
            _, step = measured(play, made)
            found["measuring"] = step.setup.id if step is not None else ""
    if app.as_json:
        app.print_json(found)
    elif found["measuring"]:
        app.console.say("the nodes measure {}", found["measuring"])


@click.command(cls=DeclaredCommand)
def stop(app: App, *, folder: RunFolder) -> None:
    """Stop measuring a run on the nodes; the cell in progress is lost, the server stays up."""
    made = of_folder(app.cluster, folder)
    with _reached(app, "bench stop") as play:
        step = stop_run(play, made)
    if step is None:
        app.show({"stopped": []}, "nothing is being measured")
        return
    stays = "its server stays up until `spark-cluster down`"
    app.show({"stopped": [step.setup.id]}, f"stopped: {step.setup.id}; {stays}")


@click.command(cls=DeclaredCommand)
def fetch(app: App, *, folder: RunFolder) -> None:
    """Copy the results from the nodes into RUN, without measuring or stopping anything."""
    made = of_folder(app.cluster, folder)
    before = len(made.record.cells)
    if made.pending:
        with _reached(app, "bench fetch") as play:
            for step in made.pending:
                fetch_step(play, made, step)
    merge(made.folder)
    new = len(made.record.cells) - before
    count = len(made.record.cells)
    found = {"run": made.record.id, "cells": count, "new": new}
    app.show(found, f"{new} new results, {count} in all, in {folder}")


@contextlib.contextmanager
def _reached(app: App, command: str) -> Iterator[Play]:
    """The nodes that answer, for a command that changes nothing on them."""
    with app.cluster.play(command, app.nodes, change=False) as play_run:
        yield play_run.open(fail_fast=False)


def go_on(
    app: App,
    made: BenchRun,
    options: Options,
    how: Mapping[str, bool],
    *,
    before: Callable[[Play], None] | None = None,
) -> None:
    """Measure what has no result yet, and show what came of it; see `measure`."""
    found = measure(app.cluster, made, options, how, run_id=app.run_id, before=before)
    _leave(app, found, options)


def _leave(app: App, found: BenchResult, options: Options) -> None:
    """Show the result, and end with its exit status."""
    if options.check:
        app.show(found, lambda app, _: app.show_recap())
    else:
        app.show(found, _show)
    if found.failed:
        sys.exit(1)


def _show(app: App, made: BenchResult) -> None:
    app.show_recap()
    console = app.console
    show_run(app, made.record)
    console.say("\nin {}", made.folder)
    if any(cell.status == "ok" for cell in made.record.cells):
        command = f"spark-cluster bench report {made.folder}"
        console.say("[bold]{}[/] makes the report", command)
    if made.record.repeats is not None:
        command = f"spark-cluster bench compare {made.folder / SOURCE} {made.folder}"
        console.say("[bold]{}[/] compares them", command)


# -- the link between the nodes and their memory, measured as a Ray job ----------------------------


@click.command(cls=DeclaredCommand)
def fabric(
    app: App,
    *,
    recipe_name: str | None,
    out: Annotated[
        Path | None,
        f"(FOLDER): Folder for fabric.json; by default one of the run's id in {RESULTS}/.",
    ],
    allow: Allowing,
    options: Changing,
) -> None:
    """Measure all-reduces between the nodes, and the memory bandwidth of each.

    It runs as a Ray job in the image of a recipe, while nothing is served. NCCL on GPUs, gloo on
    CPUs. The exit status is 5 when the figures are worse than expected.

    Args:
        recipe_name (--recipe NAME): Recipe whose image and message sizes are taken, instead of the
            inventory's.
    """
    if options.selection.partial and not options.check:
        raise UsageError(
            "--tags, --skip-tags and --start-at would start a part of Ray only",
            hint="leave them out, or add --check",
        )
    if out is not None and (out / FILE).exists():
        raise UsageError(f"{out} holds a {FILE} already", hint="give another folder with --out")
    recipe, size = recipe_for_ray(app.cluster, recipe_name, "bench fabric", allow)
    with app.cluster.play("bench fabric", app.nodes, options) as play_run:
        playbook = app.project.load_playbook("fabric")
        play = play_run.open()
        found = playbook.function(play, recipe=recipe, tp=size, name=play_run.id)
        folder = out or Path(RESULTS) / play_run.id
        if found is not None:
            save_document(found, folder / FILE)
        play_run.finish()
        where = str(folder) if found is not None else None
        told = {"folder": where, "fabric": found}
        app.show_run(play_run, told, found, partial(show_fabric, path=folder / FILE))
    if found is not None and found.verdict == "slow":
        sys.exit(VerificationFailed.exit_code)


def show_fabric(app: App, found: FabricRecord, path: Path) -> None:
    """Show the verdict, the reasons and known issues, then the figures."""
    colours = {"as expected": "green", "slow": "red", "not judged": "yellow"}
    verdict = painted(found.verdict, f"bold {colours[found.verdict]}")
    console = app.console
    versions = f"{found.backend} {found.nccl}".strip()
    about = f"{versions}, torch {found.torch}, Ray {found.ray}"
    console.say("\n{} [dim]{}[/]", verdict, about)
    for reason in found.reasons:
        console.say("  {}", reason)
    for issue in found.issues:
        console.say("[bold]{}[/]: {} [dim]({})[/]", issue.id, issue.title, issue.found)
        console.say("  [dim]fix:[/] {}", app.to_paste(issue.fix))
    known = {"expected": EXPECTED_GB_S, "whole": Constants().bandwidth / 1e9}
    known["is_judged"] = found.verdict != "not judged"
    for name, rows in (("allreduce", found.allreduce), ("node_memory", found.nodes)):
        console.print(console_table(declared(name, ({"row": row} for row in rows), **known)))
    if found.left_out:
        sizes = ", ".join(size_text(size) for size in found.left_out)
        console.say("[yellow]no time was left for[/] {}", sizes)
    console.say("written to {}", path)
