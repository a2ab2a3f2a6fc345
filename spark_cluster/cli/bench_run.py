"""`bench run` and what goes with it: status, attach, stop, fetch."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App, allowing, changing, leave_with
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.bench.record import Record
    from spark_cluster.bench.run import BenchRun
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.runner.options import Options
    from spark_cluster.runner.play import Play

RESULTS = "bench-results"
"""Folder for runs, below the current one."""

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
@OUT
@KEEP
@STOP
@allowing
@changing
@click.pass_obj
def run(
    app: App,
    suite: str,
    recipes: tuple[str, ...],
    out: Path | None,
    keep: bool,
    stop_at_first_failure: bool,
    allow: Allowances,
    exit_code: bool,
    options: Options,
) -> None:
    """Measure a suite: bring each server up, verify it, measure it, and take it down.

    The cells are measured by a systemd unit on the head (with several replicas: on the first node
    of each), which goes on without this laptop; `bench attach RUN` continues the run and measures
    only what has no result yet.
    """
    refuse_second_run(out)
    app.connect_early()
    made = _begin(app, suite, recipes, allow, out)
    how = {"keep": keep, "stop_at_first_failure": stop_at_first_failure}
    go_on(app, made, options, how, exit_code=exit_code)


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
    exit_code: bool,
    options: Options,
) -> None:
    """Continue a run that was interrupted, stopped or has failed; RUN is its folder."""
    app.connect_early()
    from spark_cluster.bench.run_folder import load_record

    record = load_record(folder)
    made = _of_record(app, record, folder, allow)
    if record.repeats is not None and not trust_recipes and not options.check:
        from spark_cluster.bench.repeat import SOURCE, load_original, must_be_trusted

        # The folder may be somebody else's, whose user has trusted them.
        source = folder / SOURCE
        original = load_original(source, app.allowances(allow))
        must_be_trusted(original, app.project, f"with `bench repeat {source} --check`")
    how = {"keep": keep, "stop_at_first_failure": stop_at_first_failure}
    go_on(app, made, options, how, exit_code=exit_code)


@click.command()
@RUN
@click.pass_obj
def status(app: App, folder: Path) -> None:
    """Show how many cells have a result here, and which server the nodes measure now."""
    from spark_cluster.bench.replica_run import is_measuring
    from spark_cluster.cli.console import styled

    made = _of_folder(app, folder)
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
    from spark_cluster.bench import replica_run, run_telemetry

    made = _of_folder(app, folder)
    stopped = []
    with _reached(app, "bench stop") as play:
        for step in made.pending:
            if replica_run.stop(play, made, step):
                run_telemetry.stop(play.sessions.values(), made.on_node(step))
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
    from spark_cluster.bench.replica_run import fetch as fetch_step
    from spark_cluster.bench.telemetry_parts import merge

    made = _of_folder(app, folder)
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


def refuse_second_run(out: Path | None) -> None:
    """Refuse a folder that has a run.

    Raises:
        UsageError: it has one.
    """
    from spark_cluster.bench.run_folder import RECORD

    if out is not None and (out / RECORD).exists():
        hint = f"`spark-cluster bench attach {out}` continues it; or give another folder with --out"
        raise UsageError(f"{out} holds a run already", hint=hint)


def _begin(
    app: App, name: str, names: tuple[str, ...], allow: Allowances, out: Path | None
) -> BenchRun:
    """Return a new run of a suite."""
    from spark_cluster import __version__
    from spark_cluster.bench import generators
    from spark_cluster.bench.expansion import canonical
    from spark_cluster.bench.project_state import commit_of
    from spark_cluster.bench.record import Record
    from spark_cluster.bench.suite import load_suite

    suite = load_suite(name, app.project)
    app.project.must_be_own(app.project.resolve("suites", name), f"suite {name}")
    served = app.inventory.serve.recipe
    chosen = names or tuple(suite.recipes) or ((served,) if served else ())
    record = Record(
        id=app.run_id,
        suite=suite.name,
        suite_text=canonical(suite),
        spark_cluster=__version__,
        started=datetime.now(UTC),
        status="running",
        tool=generators.tool(suite),
        setups=(),
        cells=(),
        command=(
            "spark-cluster",
            "bench",
            "run",
            name,
            *(w for n in chosen for w in ("--recipe", n)),
        ),
        recipes=chosen,
        client=app.inventory.head.name,
        project_commit=commit_of(app.project.folder),
    )
    return _of_record(app, record, out or Path(RESULTS) / record.id, allow)


def _of_folder(app: App, folder: Path) -> BenchRun:
    """Return a run to look at, or to end."""
    from spark_cluster.bench.run_folder import load_record

    return _of_record(app, load_record(folder), folder, known=False)


@contextlib.contextmanager
def _reached(app: App, command: str) -> Iterator[Play]:
    """The nodes that answer, for a command that changes nothing on them."""
    from spark_cluster.runner.options import Options

    with app.play(command, app.nodes, Options(), change=False) as play_run:
        yield play_run.open(fail_fast=False)


def _of_record(
    app: App,
    record: Record,
    folder: Path,
    allow: Allowances | None = None,
    *,
    known: bool = True,
) -> BenchRun:
    """Return the run that a record is of, as its suite says it.

    Args:
        known: with the recipes; to look at a run, or to end it, they are not needed.

    Raises:
        InvalidFile: the record's suite is none.
    """
    from spark_cluster.bench.expansion import expand, measurable
    from spark_cluster.bench.repeat import continued, suite_of
    from spark_cluster.bench.run import BenchRun
    from spark_cluster.bench.run_folder import RECORD
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.loader.recipes import load_recipe

    allowed = app.allowances(allow or Allowances())
    if record.repeats is not None:
        # All, whatever --limit selects: cells that are left out now have a result for good.
        return continued(record, folder, allowed, len(app.inventory.nodes))
    suite = suite_of(record, str(folder / RECORD))
    recipes = {}
    for name in record.recipes if known else ():
        recipes[name] = load_recipe(name, app.project, allowed)
        app.project.must_be_own(app.project.resolve("recipes", name), f"recipe {name}")
    return BenchRun(
        record=record,
        suite=suite,
        expansion=measurable(suite, expand(suite, recipes, record.recipes)),
        folder=folder,
    )


def go_on(
    app: App,
    made: BenchRun,
    options: Options,
    how: Mapping[str, bool],
    *,
    exit_code: bool,
    before: Callable[[Play], None] | None = None,
) -> None:
    """Measure what has no result yet, and show what came of it.

    Args:
        how: `keep` and `stop_at_first_failure`, as the playbook `bench` takes them.
        before: is called when the nodes are connected, before anything is measured.
    """
    from spark_cluster.bench.run_folder import save_record
    from spark_cluster.bench.telemetry_file import need_pyarrow

    if options.selection.partial and not options.check:
        raise UsageError(
            "--tags, --skip-tags and --start-at would bring up part of a server only",
            hint="leave them out, or add --check",
        )
    need_pyarrow()  # not after hours of measuring
    with app.play(f"bench run {made.suite.name}", app.nodes, options) as play_run:
        playbook = app.project.load_playbook("bench")
        play = play_run.open()
        if before is not None:
            before(play)
        if not options.check:
            save_record(made.record, made.folder)
        playbook.function(play, run=made, **how)
        play_run.finish()
        cells = made.record.cells
        failed = [cell for cell in cells if cell.status == "failed"]
        if app.as_json:
            about = made.record.model_dump(mode="json", include={"id", "suite", "status"})
            folder = str(made.folder)
            count = {"cells": len(cells), "failed": len(failed)}
            app.print_json(play_run.to_dict(ok=not failed, run=about, folder=folder, **count))
        else:
            play_run.show_recap()
            if not options.check:
                _show(app, made, failed)
    leave_with(play_run, exit_code=exit_code)
    if failed:
        sys.exit(1)


def _show(app: App, made: BenchRun, failed: list[Any]) -> None:
    from spark_cluster.cli.console import styled

    console = app.console
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
    console.print(styled("{} cells measured, in {}", measured, made.folder), soft_wrap=True)
    if measured:
        command = f"spark-cluster bench report {made.folder}"
        console.print(styled("[bold]{}[/] makes the report", command), soft_wrap=True)
    if made.record.repeats is not None:
        from spark_cluster.bench.repeat import SOURCE

        command = f"spark-cluster bench compare {made.folder / SOURCE} {made.folder}"
        console.print(styled("[bold]{}[/] compares them", command), soft_wrap=True)
