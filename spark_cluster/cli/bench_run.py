"""`bench run` and what goes with it: status, attach, stop, fetch."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from spark_cluster.bench.expansion import cells_text
from spark_cluster.bench.head import fetch as fetch_step
from spark_cluster.bench.head import is_measuring
from spark_cluster.bench.head import stop as stop_step
from spark_cluster.bench.repeat import SOURCE, load_original, must_be_trusted
from spark_cluster.bench.run import BenchRun
from spark_cluster.bench.run_folder import load_record
from spark_cluster.bench.run_telemetry import merge
from spark_cluster.cli.app import App, allowing, changing
from spark_cluster.cli.bench_measure import (
    RESULTS,
    BenchResult,
    measure,
    of_folder,
    of_record,
    refuse_second_run,
)
from spark_cluster.cli.bench_repeat import begin
from spark_cluster.cli.console import styled
from spark_cluster.config.allowances import Allowances
from spark_cluster.errors import UsageError
from spark_cluster.runner.options import Options
from spark_cluster.runner.play import Play

OUT = click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER",
    help=f"Folder for the results; by default one of the run's id in {RESULTS}/.",
)  # fmt: skip

KEEP = click.option("--keep", is_flag=True, help="Leave the last server up after the run.")

STOP = click.option(
    "--stop-at-first-failure", is_flag=True,
    help="End the run at the first server that does not start, instead of failing its cells.",
)  # fmt: skip

TRUST = click.option(
    "--trust-recipes", is_flag=True,
    help="Run recipes of a repeated record that are not yours: they start containers as root on "
    "the nodes. `bench repeat RUN --check` shows them.",
)  # fmt: skip

RUN = click.argument("folder", metavar="RUN", type=click.Path(path_type=Path, exists=True))


@click.command()
@click.argument("suite")
@click.option(
    "--recipe", "recipes", multiple=True, metavar="NAME",
    help="Recipe to measure, instead of the suite's; repeatable.",
)  # fmt: skip
@TRUST
@OUT
@KEEP
@STOP
@allowing
@changing
@click.pass_obj
def run(app: App, /, suite: str, recipes: tuple[str, ...], **how: Any) -> None:
    """Measure a suite: bring each server up, verify it, measure it, and take it down.

    The cells are measured by a systemd unit on the head, which goes on without this laptop; `bench
    attach RUN` continues the run and measures only what has no result yet. SUITE may be the
    run.json of a run, which is then run again as `bench repeat` does.
    """
    if suite.endswith(".json"):
        if recipes:
            raise UsageError(
                f"{suite} is a recorded run, which has recipes of its own", hint="omit --recipe"
            )
        _run_again(app, Path(suite), **how)
        return
    refuse_second_run(how["out"])
    how.pop("trust_recipes")
    _leave(app, app.cluster.bench(suite, recipes, **how), how["options"])


@click.command()
@RUN
@TRUST
@OUT
@KEEP
@STOP
@allowing
@changing
@click.pass_obj
def repeat(app: App, /, folder: Path, **how: Any) -> None:
    """Run a recorded run again, also somebody else's; RUN is its folder, or its run.json.

    Suite and recipes are taken from the record, not from your project. What would be run is shown,
    and what differs here; --check ends there. `bench attach` continues the new run.
    """
    _run_again(app, folder, **how)


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
    made, before = begin(app, folder, allow, options, trust_recipes=trust_recipes, out=out)
    go_on(app, made, options, how, before=before)


@click.command()
@RUN
@TRUST
@KEEP
@STOP
@allowing
@changing
@click.pass_obj
def attach(
    app: App,
    folder: Path,
    trust_recipes: bool,
    keep: bool,
    stop_at_first_failure: bool,
    allow: Allowances,
    options: Options,
) -> None:
    """Continue a run that was interrupted, stopped or has failed; RUN is its folder."""
    record = load_record(folder)
    made = of_record(app.cluster, record, folder, allow)
    if record.repeats is not None and not trust_recipes and not options.check:
        # The folder may be somebody else's, whose user has trusted them.
        source = folder / SOURCE
        original = load_original(source, app.allowances(allow))
        must_be_trusted(original, app.project, f"with `bench repeat {source} --check`")
    how = {"keep": keep, "stop_at_first_failure": stop_at_first_failure}
    go_on(app, made, options, how)


@click.command()
@RUN
@click.pass_obj
def status(app: App, folder: Path) -> None:
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
        app.console.print(styled("{}: {}{}", record.id, done, failed), soft_wrap=True)
    if made.pending:
        with _reached(app, "bench status") as play:
            for step in made.pending:
                if is_measuring(play, made, step):
                    found["measuring"] = step.setup.id
    if app.as_json:
        app.print_json(found)
    elif found["measuring"]:
        app.console.print(styled("the nodes measure {}", found["measuring"]), soft_wrap=True)


@click.command()
@RUN
@click.pass_obj
def stop(app: App, folder: Path) -> None:
    """End what a run measures on the nodes; the cell in progress is lost, the server stays up."""
    made = of_folder(app.cluster, folder)
    stopped = []
    with _reached(app, "bench stop") as play:
        for step in made.pending:
            if stop_step(play, made, step):
                stopped.append(step.setup.id)
    if app.as_json:
        app.print_json({"stopped": stopped})
    else:
        app.console.print(_stopped(stopped))


def _stopped(servers: list[str]) -> str:
    if not servers:
        return "nothing is being measured"
    return f"stopped: {', '.join(servers)}; its server stays up until `spark-cluster down`"


@click.command()
@RUN
@click.pass_obj
def fetch(app: App, folder: Path) -> None:
    """Copy the results that are on the nodes into RUN; measure nothing, and stop no server."""
    made = of_folder(app.cluster, folder)
    before = len(made.record.cells)
    if made.pending:
        with _reached(app, "bench fetch") as play:
            for step in made.pending:
                fetch_step(play, made, step)
    merge(made.folder)
    new = len(made.record.cells) - before
    if app.as_json:
        app.print_json({"run": made.record.id, "cells": len(made.record.cells), "new": new})
    else:
        app.console.print(f"{new} new results, {len(made.record.cells)} in all, in {folder}")


@contextlib.contextmanager
def _reached(app: App, command: str) -> Iterator[Play]:
    """The nodes that answer, for a command that changes nothing on them."""
    with app.play(command, app.nodes, Options(), change=False) as play_run:
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
    if app.as_json:
        app.print_json(found)
    else:
        app.show_recap()
        if not options.check:
            _show(app, found)
    if found.failed:
        sys.exit(1)


def _show(app: App, made: BenchResult) -> None:
    console, failed = app.console, made.failed
    together = Counter((cell.setup, cell.reason) for cell in failed)
    for (setup, reason), count in together.items():
        ids = [cell.id for cell in failed if (cell.setup, cell.reason) == (setup, reason)]
        what = ids[0] if count == 1 else f"{count} cells of {setup}"
        console.print(styled("[red]failed:[/] {}: {}", what, reason))
    skipped = [cell for cell in made.record.cells if cell.status == "skipped"]
    for reason in dict.fromkeys(cell.reason for cell in skipped):
        count = sum(cell.reason == reason for cell in skipped)
        console.print(styled("[yellow]{} left out:[/] {}", count, reason))
    measured = len(made.record.cells) - len(failed) - len(skipped)
    console.print(styled("{} measured, in {}", cells_text(measured), made.folder), soft_wrap=True)
    if measured:
        command = f"spark-cluster bench report {made.folder}"
        console.print(styled("[bold]{}[/] makes the report", command), soft_wrap=True)
    if made.record.repeats is not None:
        command = f"spark-cluster bench compare {made.folder / SOURCE} {made.folder}"
        console.print(styled("[bold]{}[/] compares them", command), soft_wrap=True)
