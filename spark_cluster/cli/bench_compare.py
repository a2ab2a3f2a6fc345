"""`bench compare`: two runs, a run and a baseline, a run and what others published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.bench.compare import Comparison, NotComparable, Row
    from spark_cluster.bench.planned_speed import Preview
    from spark_cluster.bench.record import Record
    from spark_cluster.bench.references import PredictedFigure, PublishedComparison

_COLOURS = {"better": "green", "worse": "red", "same": "", "too noisy": "yellow"}


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--baseline", is_flag=True,
    help="End with exit status 1 if B is worse than A, or nothing of it could be compared.",
)  # fmt: skip
@click.option(
    "--published", "with_published", is_flag=True,
    help="Compare A with what others published for the same model and load.",
)  # fmt: skip
@click.option(
    "--predicted", is_flag=True,
    help="Compare A with what the plan predicted for it, and show what calibrating by it changes.",
)  # fmt: skip
@click.option("--all", "all_figures", is_flag=True, help="List every published figure too.")
@click.pass_context
def compare(
    ctx: click.Context,
    a: str,
    b: str | None,
    baseline: bool,
    with_published: bool,
    predicted: bool,
    all_figures: bool,
) -> None:
    """Compare two runs cell by cell: better, worse, the same, or too noisy to tell.

    A and B are folders of runs, or their run.json; FOLDER#SETUP is one server of a run, such as one
    side of a pair. B is judged against A. Only cells that were measured alike are compared, the
    others are listed with the reason.
    """
    from spark_cluster.bench.compare import compare as compare_runs
    from spark_cluster.bench.planned_speed import preview
    from spark_cluster.bench.references import against_plan, against_published

    app: App = ctx.obj
    if b is None and not (with_published or predicted):
        raise UsageError(
            "only one run is given", hint="give a second one, --published or --predicted"
        )
    if b is None and baseline:
        raise UsageError("--baseline needs a second run", hint="give the one that is judged")
    first = _record(a)
    found = compare_runs(first, _record(b)) if b is not None else None
    others = against_published(first) if with_published else None
    plans = against_plan(first) if predicted else None
    fit = preview(first, app.project.folder) if predicted else None
    if app.as_json:
        app.print_json(compare_document(found, others, plans, fit))
    else:
        if found is not None:
            _show_comparison(app, found)
        if others is not None:
            _show_published(app, others, all_figures=all_figures)
        if plans is not None:
            _show_predicted(app, plans)
        if fit is not None:
            _show_calibration(app, fit)
    if baseline and found is not None and (found.regressed or not found.rows):
        ctx.exit(1)


def _record(name: str) -> Record:
    from spark_cluster.bench.compare import part_of
    from spark_cluster.bench.run_folder import load_record

    folder, mark, setup = name.rpartition("#")
    if not mark or Path(name).exists():
        return load_record(Path(name))
    return part_of(load_record(Path(folder)), setup)


def compare_document(
    found: Comparison | None,
    others: PublishedComparison | None,
    plans: list[PredictedFigure] | None,
    fit: Preview | None = None,
) -> dict[str, Any]:
    """As in `bench compare --json`."""
    from spark_cluster.bench.references import coverage, mean_error

    return {
        "comparison": found.to_dict() if found else None,
        "published": others.to_dict() if others else None,
        "predicted": None
        if plans is None
        else {
            "coverage": coverage(plans),
            "mean_error": mean_error(plans),
            "rows": [row.to_dict() for row in plans],
            "calibration": fit.to_dict() if fit else None,
        },
    }


def _show_comparison(app: App, found: Comparison) -> None:
    from spark_cluster.bench.compare import SETUP_FIELDS
    from spark_cluster.cli.bench_format import table_by_load
    from spark_cluster.cli.console import painted, styled

    console = app.console
    colour = "red" if found.regressed else "green" if found.count("better") else ""
    console.print(painted(found.summary, f"bold {colour}".strip()))
    console.print(styled("[dim]A {}, B {}; B is judged against A[/]", found.a, found.b))
    for line in found.changed:
        console.print(styled("[dim]differs:[/] {}", line), soft_wrap=True)
    if found.rows:
        console.print()
        rows = (((row.key, row.setup.id, row.metric), _figures(row)) for row in found.rows)
        console.print(table_by_load(("A", "B", "B / A", "95 %", "verdict"), rows))
    _left_out(app, found.not_comparable)
    within_a_run = SETUP_FIELDS["tp"], SETUP_FIELDS["replicas"]
    if not found.rows and any(one.reason.startswith(within_a_run) for one in found.not_comparable):
        console.print("`spark-cluster bench report RUN` compares TP=1, TP=2 and replicas of a run")


def _figures(row: Row) -> tuple[Any, ...]:
    from spark_cluster.bench.report.formats import number
    from spark_cluster.cli.console import painted

    one = row.difference
    verdict = f"same ±{one.floor:.0%}" if one.verdict == "same" else one.verdict
    interval = "" if one.low is None or one.high is None else f"{one.low:.2f}-{one.high:.2f}"
    return (
        number(row.a),
        number(row.b),
        "" if one.ratio is None else f"{one.ratio:.3f}",
        interval,
        painted(verdict, _COLOURS.get(one.verdict, "dim")),
    )


def _left_out(app: App, found: Sequence[NotComparable]) -> None:
    from spark_cluster.cli.console import styled

    for reason in dict.fromkeys(one.reason for one in found):
        cells = [f"{one.side} {one.cell}" for one in found if one.reason == reason]
        count = f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'}"
        app.console.print(styled("[yellow]not comparable, {}:[/] {}", count, reason))
        for cell in cells if app.verbose or len(cells) == 1 else ():
            app.console.print(styled("  [dim]{}[/]", cell), soft_wrap=True)


def _show_published(app: App, found: PublishedComparison, *, all_figures: bool) -> None:
    from spark_cluster.bench.report.formats import number
    from spark_cluster.cli.bench_format import figures_table, table_by_load
    from spark_cluster.cli.console import painted, styled

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
    for text, mark in marks.items():
        console.print(styled("[yellow]not alike {}:[/] {}", mark, text), soft_wrap=True)
    rows = []
    for row in found.rows:
        source = " ".join([row.figure.source, *(marks[text] for text in row.caveats)])
        spread = f" ± {number(row.figure.std)}" if row.figure.std is not None else ""
        figures = number(row.value) + spread, number(row.measured), f"{row.share:+.1%}"
        rows.append(((row.cell.key, source, row.metric), figures))
    if rows:
        console.print(table_by_load(("published", "here", "deviation"), rows))
    if not all_figures:
        text = "--all lists the published figures that are not compared, with the reason"
        console.print(painted(f"{text}: {len(found.others)}", "dim"))
        return
    table = figures_table("figure", "value", "why it is not compared")
    for one, why in found.others:
        table.add_row(f"{one.id} {one.metric}", one.shown, why)
    console.print(table)


def _show_predicted(app: App, rows: list[PredictedFigure]) -> None:
    from spark_cluster.bench.references import coverage, mean_error
    from spark_cluster.bench.report.formats import number
    from spark_cluster.cli.bench_format import table_by_load
    from spark_cluster.cli.console import painted

    share = coverage(rows)
    if share is None:
        app.console.print(painted("no cell of this run was both predicted and measured", "bold"))
        return
    inside = sum(row.is_inside for row in rows)
    text = f"{inside} of {len(rows)} predictions hold ({share:.0%} inside their range)"
    text += f", mean error {mean_error(rows):.1%}"
    app.console.print(painted(text, "bold"))
    shown = []
    for row in rows:
        span = f"{number(row.low)}-{number(row.high)}"
        verdict = painted("inside", "green") if row.is_inside else painted("outside", "red")
        figures = number(row.value), span, number(row.measured), f"{row.error:+.1%}", verdict
        shown.append(((row.key, row.setup, row.metric), figures))
    app.console.print(table_by_load(("predicted", "range", "measured", "error", ""), shown))


def _show_calibration(app: App, fit: Preview) -> None:
    from spark_cluster.cli.console import painted, styled
    from spark_cluster.cli.predict_calibrate import show_fit

    console = app.console
    console.print()
    if fit.found is not None:
        console.print(painted("predict --calibrate with this run would change", "bold"))
        show_fit(app, fit.found, fit.left_out)
        return
    console.print(painted("predict --calibrate has no use for this run", "bold"))
    for why in dict.fromkeys((fit.why, *fit.left_out)):
        console.print(styled("  {}", why), soft_wrap=True)
