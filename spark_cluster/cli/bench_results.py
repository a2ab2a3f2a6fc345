"""What `bench` can measure and has measured: `suites`, `show`, `compare` and `report`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import click
from rich.table import Table

from spark_cluster.bench.compare import SETUP_FIELDS, Comparison, NotComparable, part_of
from spark_cluster.bench.compare import compare as compare_runs
from spark_cluster.bench.expansion import Duration, Expansion, Step, estimate, expand
from spark_cluster.bench.open_loop import TIMES
from spark_cluster.bench.record import (
    REPORT,
    SHOWN_PERCENTILES,
    CellKey,
    CellResult,
    MetricName,
    Record,
    load_record,
)
from spark_cluster.bench.references import (
    PlanComparison,
    PublishedComparison,
    against_published,
    compared_to_plan,
    planned_speeds,
)
from spark_cluster.bench.report import Report, write_report
from spark_cluster.bench.report.rendering import Table as Figures
from spark_cluster.bench.report.rendering import number, shape
from spark_cluster.bench.report.results import Results
from spark_cluster.bench.report.tables import declared, mean, tables_of
from spark_cluster.bench.suite import Suite, load_suite
from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, plain_table, styled
from spark_cluster.cli.options import DeclaredCommand
from spark_cluster.cli.predictions import show_fit
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.models.naming import table
from spark_cluster.node.output import counted, elapsed

STYLES = {"load": "bold", "attention": "yellow", "bad": "red"}
"""Of the marks of rows."""

COLOURS = {
    "better": "green", "inside": "green", "worse": "red", "outside": "red", "same": "", "": "",
    "too noisy": "yellow",
}  # fmt: skip
"""Of verdicts; others are dim."""

MOST = 6
"""Figures that a table of 80 columns has room for, next to the load."""

METRICS: dict[MetricName, dict[str, str]] = table("metrics", "bench")["metrics"]
"""Figures of a cell, the most telling first: the `title` of each, and the `short` one of a column
for those that a run's figures show."""


def figures_table(*titles: str, text: Collection[int] = (0,)) -> Table:
    """Return an empty table: text on the left of its columns, figures on the right.

    Args:
        text: columns with text.
    """
    right = [title for index, title in enumerate(titles) if index not in text]
    return plain_table(*titles, right=right, wide=True)


def table_by_load(name: str, rows: Iterable[tuple[CellKey, str, MetricName, Any]]) -> Table:
    """Return a table of `tables.toml` with its metrics below the load and the server they are of.

    Args:
        rows: load, what it was measured on, metric, and what the columns speak of; those of one
            load stand together.
    """
    known = list(rows)
    speak = ({"row": row, "one": getattr(row, "difference", None)} for *_, row in known)
    found = declared(name, speak)
    table = figures_table("", *found.columns)
    lines = zip(known, found.rows, range(len(known)), strict=True)
    for (key, about), group in groupby(lines, lambda line: line[0][:2]):
        table.add_row(painted(shape(key), "bold"))
        table.add_row(painted(f"  {about}", "dim"))
        for (_, _, metric, _), (*figures, last), index in group:
            verdict = painted(last, COLOURS.get(found.marked.get(index, ""), "dim"))
            table.add_row(f"  {METRICS[metric]['title']}", *figures, verdict)
    return table


def console_table(found: Figures) -> Table:
    """Return a table of the report for the terminal."""
    table = figures_table(*found.columns, text=found.left)
    for index, row in enumerate(found.rows):
        table.add_row(*map(painted, row), style=STYLES.get(found.marked.get(index, "")))
    return table


# -- a run -----------------------------------------------------------------------------------------


def show_run(app: App, record: Record) -> None:
    """Show the figures of a run, setup by setup, and what failed."""
    console = app.console
    bad = [cell for cell in record.cells if cell.status != "ok"]
    good = len(record.cells) - len(bad)
    colour = "red" if any(cell.status == "failed" for cell in bad) else "green"
    begun = "" if record.status == "complete" else "begun "  # others are not in the record yet
    verdict = f"{record.status}: {good} of {len(record.cells)} {begun}cells measured"
    console.say("{}  [dim]run {}[/]", painted(verdict, f"bold {colour}"), record.id)
    mode = f", latency mode {record.tool.latency_mode}" if record.tool.latency_mode else ""
    about = f"suite {record.suite}, {record.tool.name} {record.tool.version}{mode}; speeds in tok/s"
    console.print(painted(about, "dim"))
    if begun:
        status, attach = (app.command(f"bench {word} RUN") for word in ("status", "attach"))
        console.print(f"`{status}` counts what is left, `{attach}` continues it")
    place = {setup.id: number for number, setup in enumerate(record.setups)}
    ordered = sorted(  # turns of a pair stand together
        (cell for cell in record.cells if cell.status == "ok"),
        key=lambda cell: (place.get(cell.setup, len(place)), cell.setup),
    )
    for setup, cells in groupby(ordered, lambda cell: cell.setup):
        found = list(cells)
        console.say("\n[bold]{}[/]", setup)
        if about := _replicas(record, setup):
            console.print(painted(about, "dim"))
        console.print(console_table(_figures_table(found)))
        results = Results(record.model_copy(update={"cells": tuple(found)}))
        (answers,) = tables_of(results, "answers")
        for more in (_percentiles_table(found), answers.without("setup", "kind", "streamed")):
            if more.rows:
                console.print()
                console.print(console_table(more))
    _show_reasons(app, record)


def _show_reasons(app: App, record: Record) -> None:
    """Show why cells have no result, and what there is against others."""
    together: dict[tuple[str, str, str], list[str]] = {}
    for cell in record.cells:
        if cell.status != "ok":
            together.setdefault((cell.status, cell.setup, cell.reason), []).append(cell.id)
    for (status, setup, reason), ids in together.items():
        what = ids[0] if len(ids) == 1 else f"{len(ids)} cells of {setup}"
        colour = "red" if status == "failed" else "yellow"
        app.console.print(painted(f"{status}: {what}: {reason}", colour))
    for cell in record.cells:
        for text in cell.attention:
            app.console.say("[yellow]attention:[/] {}: {}", cell.id, text)


def _replicas(record: Record, setup: str) -> str:
    """Return what the servers of a setup are; empty for one server."""
    known = next((one for one in record.setups if one.id == setup), None)
    if known is None or known.replicas == 1:
        return ""
    return f"{known.replicas} replicas on {', '.join(known.nodes)}, behind one endpoint"


def _figures_table(cells: Sequence[CellResult]) -> Figures:
    """The means of each cell, as many as 80 columns have room for."""
    several = any(cell.key.concurrency != 1 for cell in cells)
    names = [
        name
        for name, metric in METRICS.items()
        if "short" in metric
        and any(name in cell.metrics for cell in cells)
        and (name != "tg_tps_request" or several)
    ][:MOST]
    rows = ((shape(cell.key), *(mean(cell, name) for name in names)) for cell in cells)
    return Figures("", ("", *(METRICS[name]["short"] for name in names)), tuple(rows))


def _percentiles_table(cells: Sequence[CellResult]) -> Figures:
    """Percentiles of the times of `vllm bench serve`, below the load that they are of."""
    rows: list[tuple[str, ...]] = []
    marked = {}
    for cell in cells:
        times = {name: cell.metrics.get(name) for name in TIMES}
        found = {name: metric for name, metric in times.items() if metric and metric.percentiles}
        if found:
            marked[len(rows)] = "load"
            rows.append((shape(cell.key), *[""] * (1 + len(SHOWN_PERCENTILES))))
        for name, metric in found.items():
            known = (metric.percentiles.get(p) for p in SHOWN_PERCENTILES)
            figures = ("" if value is None else number(value) for value in known)
            rows.append((f"  {METRICS[name]['title']}", number(metric.mean), *figures))
    return Figures("", ("", "mean", *SHOWN_PERCENTILES), tuple(rows), marked=marked)


# -- beside others ---------------------------------------------------------------------------------


def show_comparison(app: App, found: Comparison) -> None:
    """Show what is better, worse or alike in B, and what could not be compared."""
    console = app.console
    colour = "red" if found.regressed else "green" if found.count("better") else ""
    console.print(painted(found.summary, f"bold {colour}".strip()))
    console.say("[dim]A {}, B {}; B is judged against A[/]", found.a, found.b)
    for line in found.changed:
        console.say("[dim]differs:[/] {}", line)
    if found.rows:
        console.print()
        rows = ((row.key, row.setup.id, row.metric, row) for row in found.rows)
        console.print(table_by_load("compared", rows))
    _left_out(app, found.not_comparable)
    within_a_run = SETUP_FIELDS["tp"], SETUP_FIELDS["replicas"]
    if not found.rows and any(one.reason.startswith(within_a_run) for one in found.not_comparable):
        console.print("`spark-cluster bench report RUN` compares TP=1, TP=2 and replicas of a run")


def _left_out(app: App, found: Sequence[NotComparable]) -> None:
    for reason in dict.fromkeys(one.reason for one in found):
        cells = [f"{one.side} {one.cell}" for one in found if one.reason == reason]
        count = counted(len(cells), "cell")
        app.console.say("[yellow]not comparable, {}:[/] {}", count, reason)
        for cell in cells if app.verbose or len(cells) == 1 else ():
            app.console.say("  [dim]{}[/]", cell)


def show_published(app: App, found: PublishedComparison, *, all_figures: bool) -> None:
    """Show the published figures that were measured again.

    Args:
        all_figures: list the others, too.
    """
    console = app.console
    shares = sorted(abs(row.share) for row in found.rows)
    total = len({row.figure.id for row in found.rows}) + len(found.others)
    text = f"none of {total} published figures is of this model and load"
    if shares:
        middle = f"half of them within {shares[len(shares) // 2]:.1%}"
        text = f"{len(shares)} published figures measured again; {middle}"
    console.print(painted(text, "bold"))
    caveats = dict.fromkeys(text for row in found.rows for text in row.caveats)
    marks = {text: f"[{number}]" for number, text in enumerate(caveats, 1)}
    for text, sign in marks.items():
        console.say("[yellow]not alike {}:[/] {}", sign, text)
    rows = []
    for row in found.rows:
        source = " ".join([row.figure.source, *(marks[text] for text in row.caveats)])
        rows.append((row.cell.key, source, row.metric, row))
    if rows:
        console.print(table_by_load("published", rows))
    if not all_figures:
        text = "--all lists the published figures that are not compared, with the reason"
        console.print(painted(f"{text}: {len(found.others)}", "dim"))
        return
    table = figures_table("figure", "value", "why it is not compared")
    for other in found.others:
        figure = other.figure
        table.add_row(f"{figure.id} {figure.metric}", figure.shown, other.reason)
    console.print(table)


def show_predicted(app: App, found: PlanComparison) -> None:
    """Show which predictions hold, and what calibrating by the run would change."""
    rows, fit = found.rows, found.calibration
    text = "no cell of this run was both predicted and measured"
    if rows:
        inside = sum(row.is_inside for row in rows)
        text = f"{inside} of {len(rows)} predictions hold ({found.coverage:.0%} inside their range)"
        text += f", mean error {found.mean_error:.1%}"
    app.console.print(painted(text, "bold"))
    if rows:
        shown = ((row.key, row.setup, row.metric, row) for row in rows)
        app.console.print(table_by_load("planned", shown))
    app.console.print()
    if fit.found is not None:
        app.console.print(painted("predict --calibrate with this run would change", "bold"))
        show_fit(app, fit.found, fit.left_out)
        return
    app.console.print(painted("predict --calibrate has no use for this run", "bold"))
    for why in dict.fromkeys((fit.why, *fit.left_out)):
        app.console.say("  {}", why)


# -- its report ------------------------------------------------------------------------------------


def show_report(app: App, report: Report) -> None:
    """Show the verdict of a report that was written, and where its parts are."""
    sign = {"ok": "ok", "attention": "warn", "bad": "fail"}[report.verdict.mark]
    app.console.say("{} [bold]{}[/]", mark(sign), report.verdict.title)
    app.console.print(painted(report.headline))
    app.console.print(painted(report.verdict.text))
    page, post = report.files[:2]
    app.console.say("page   {}", report.folder / page)
    app.console.say("post   {}", report.folder / post)
    plots = sum(path.suffix == ".png" for path in report.files)
    app.console.say("plots  {} in {}", plots, report.folder / "plots")


# -- the commands ----------------------------------------------------------------------------------


@click.command(cls=DeclaredCommand)
def show(app: App, *, folder: Annotated[Path, {"metavar": "RUN"}]) -> None:
    """Show the figures of a run, and what failed.

    RUN is its folder, or its run.json.
    """
    app.show(load_record(folder), show_run)


@click.command(cls=DeclaredCommand)
def compare(
    ctx: click.Context,
    app: App,
    *,
    a: Annotated[str, {"metavar": "A"}],
    b: Annotated[str | None, {"metavar": "[B]"}],
    baseline: bool,
    with_published: bool,
    predicted: bool,
    all_figures: bool,
) -> None:
    """Compare two runs cell by cell: better, worse, the same, or too noisy to tell.

    A and B are folders of runs, or their run.json; FOLDER#SETUP is one server of a run, such as one
    side of a pair. B is judged against A. Only cells that were measured alike are compared, the
    others are listed with the reason.

    Args:
        baseline: End with exit status 1 if B is worse than A, or if nothing could be compared.
        with_published (--published): Compare A with what others published for the same model and
            load.
        predicted: Compare A with what the plan predicted for it, and show what calibrating by it
            changes.
        all_figures (--all): List every published figure too.
    """

    if b is None and not (with_published or predicted):
        raise UsageError(
            "only one run is given", hint="give a second one, --published or --predicted"
        )
    if b is None and baseline:
        raise UsageError("--baseline needs a second run", hint="give the one that is judged")
    first = _record(a)
    found = compare_runs(first, _record(b)) if b is not None else None
    others = against_published(first) if with_published else None
    plans = compared_to_plan(first, app.project.folder) if predicted else None
    if app.as_json:
        app.print_json({"comparison": found, "published": others, "predicted": plans})
    else:
        if found is not None:
            show_comparison(app, found)
        if others is not None:
            show_published(app, others, all_figures=all_figures)
        if plans is not None:
            show_predicted(app, plans)
    if baseline and found is not None and (found.regressed or not found.rows):
        ctx.exit(1)


def _record(name: str) -> Record:

    folder, mark, setup = name.rpartition("#")
    if not mark or Path(name).exists():
        return load_record(Path(name))
    return part_of(load_record(Path(folder)), setup)


@click.command(cls=DeclaredCommand)
def report(
    app: App,
    *,
    run: Annotated[Path, click.Path(exists=True, file_okay=False, path_type=Path)],
    out: Annotated[
        Path | None,
        click.Path(file_okay=False, path_type=Path),
        "(FOLDER): Folder for the report.  [default: RUN/report]",
    ],
) -> None:
    """Write the report of a run: one HTML page, plots as PNG and SVG, tables for a forum.

    RUN is the run's folder, with its run.json. The page loads nothing and can be sent as it is;
    the folder also holds report.md and, for each setup, the files that Spark Arena takes.
    """

    app.show(write_report(run, out or run / REPORT), show_report)


# -- what can be measured --------------------------------------------------------------------------


@click.command(cls=DeclaredCommand)
def suites(app: App, *, name: str | None, recipes: tuple[str, ...]) -> None:
    """List the suites, or show the servers and cells of one and how long it takes.

    NAME is the name of a suite, or a file. Nothing is started. Your own suites, in the folder
    suites/, take precedence over shipped ones of the same name.

    Args:
        recipes (--recipe NAME): Recipe to measure, instead of the suite's; repeatable.
    """
    if name is None:
        _list_suites(app)
        return
    suite = load_suite(name, app.project)
    found = _expanded(app, suite, recipes)
    speeds = planned_speeds(app.project)
    expected = estimate(found, speeds, suite.settings, verify=suite.verify)
    about = {"suite": suite.name, "description": suite.description, "nodes": found.nodes}
    plan = {"setups": found.setups, "cells": found.cells, "estimate": expected}
    app.show({**about, **plan}, lambda app, _: _show_suite(app, suite, found, expected))


def _expanded(app: App, suite: Suite, names: tuple[str, ...]) -> Expansion:
    chosen = names or tuple(suite.recipes) or ((app.own_recipe,) if app.own_recipe else ())
    known = {one: load_recipe(one, app.project) for one in chosen}
    return expand(suite, known, chosen)


def _list_suites(app: App) -> None:
    rows = []
    titles = ("suite", "what it answers")
    table = plain_table(*titles, whole=titles[:1], wide=True)
    for name, path in app.project.list("suites").items():
        own = not path.is_relative_to(app.project.shipped / "suites")
        shown = styled("{}[cyan]{}[/]", name, " (yours)" if own else "")
        row: dict[str, Any] = {"name": name, "path": str(path), "own": own}
        try:
            suite = load_suite(path, app.project)
        except SparkClusterError as error:
            rows.append({**row, "valid": False, "description": "", "error": error.to_dict()})
            table.add_row(shown, painted(f"invalid: {error}", "red"))
            continue
        about = suite.description
        rows.append({**row, "valid": True, "description": about, "error": None})
        table.add_row(shown, about)
    app.show({"suites": rows}, lambda app, _: app.console.print(table))


def _show_suite(app: App, suite: Suite, found: Expansion, expected: Duration) -> None:
    console = app.console
    cells = counted(sum(not cell.skip for cell in found.cells), "cell")
    servers = counted(sum(not setup.skip for setup in found.setups), "server")
    console.say("[bold]{}[/]: {} on {}, {}", suite.name, cells, servers, _suites_total(expected))
    console.print(painted(suite.description, "dim"))
    titles = ("nodes", "cells", "runs")
    table = plain_table("server", *titles, "time", right=titles, whole=("time",), wide=True)
    for step, seconds in zip(found.steps, expected.steps, strict=True):
        table.add_row(*_suite_row(step, seconds))
    console.print(table)
    for reason in dict.fromkeys(cell.skip for cell in found.cells if cell.skip):
        left_out = sum(cell.skip == reason for cell in found.cells)
        console.say("[yellow]{} left out:[/] {}", counted(left_out, "cell"), reason)
    if app.verbose:
        for cell in found.cells:
            console.print(f"  {cell.id}  {counted(cell.runs, 'run')}")
    console.print(painted(f"Assumed: {'; '.join(expected.assumptions)}.", "dim"))


def _suite_row(step: Step, seconds: float | None) -> tuple[str, ...]:
    setup, live = step.setup, step.measurable
    turn = f" (turn {step.turn})" if {c.turn for c in step.cells} - {1} else ""
    runs = sorted({cell.runs for cell in live})
    return (
        setup.id + turn,
        str(setup.nodes),
        str(len(live)),
        "-".join(map(str, dict.fromkeys((runs[0], runs[-1])))) if runs else "",
        "not known" if seconds is None else _minutes(seconds) if live else "left out",
    )


def _suites_total(expected: Duration) -> str:
    if expected.unknown and not expected.seconds:
        return "no planned speed, so no estimate"
    more = f" and what is not known of {counted(len(expected.unknown), 'server')}"
    return f"about {_minutes(expected.seconds)}{more if expected.unknown else ''}"


def _minutes(seconds: float) -> str:
    return elapsed(60 * max(1, round(seconds / 60)))
