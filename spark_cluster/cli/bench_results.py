"""`bench show`, `bench compare` and `bench report`: a run's figures, beside others, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from spark_cluster.bench.compare import compare as compare_runs
from spark_cluster.bench.compare import part_of
from spark_cluster.bench.record import REPORT, Record, load_record
from spark_cluster.bench.references import (
    PredictedFigure,
    Preview,
    against_plan,
    against_published,
    coverage,
    mean_error,
    preview,
)
from spark_cluster.bench.report import write_report
from spark_cluster.cli.app import App
from spark_cluster.cli.bench_format import (
    show_comparison,
    show_predicted,
    show_published,
    show_report,
    show_run,
)
from spark_cluster.cli.options import Command
from spark_cluster.errors import UsageError


@click.command(cls=Command)
def show(app: App, *, folder: Annotated[Path, {"metavar": "RUN"}]) -> None:
    """Show the figures of a run, and what failed.

    RUN is its folder, or its run.json.
    """

    record = load_record(folder)
    if app.as_json:
        app.print_json(record.model_dump(mode="json"))
    else:
        show_run(app, record)


@click.command(cls=Command)
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
        baseline: End with exit status 1 if B is worse than A, or nothing of it could be compared.
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
    plans = against_plan(first) if predicted else None
    fit = preview(first, app.project.folder) if predicted else None
    if app.as_json:
        planned = None
        if plans is not None:
            planned = PlanComparison(coverage(plans), mean_error(plans), plans, fit)
        app.print_json({"comparison": found, "published": others, "predicted": planned})
    else:
        if found is not None:
            show_comparison(app, found)
        if others is not None:
            show_published(app, others, all_figures=all_figures)
        if plans is not None and fit is not None:
            show_predicted(app, plans, fit)
    if baseline and found is not None and (found.regressed or not found.rows):
        ctx.exit(1)


def _record(name: str) -> Record:

    folder, mark, setup = name.rpartition("#")
    if not mark or Path(name).exists():
        return load_record(Path(name))
    return part_of(load_record(Path(folder)), setup)


@dataclass(frozen=True)
class PlanComparison:
    """A run next to its plan, as `bench compare --predicted --json` prints it."""

    coverage: float | None
    mean_error: float | None
    rows: list[PredictedFigure]
    calibration: Preview | None


@click.command(cls=Command)
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

    written = write_report(run, out or run / REPORT)
    if not app.as_json:
        show_report(app, written)
        return
    app.print_json(
        {
            "folder": str(written.folder),
            "verdict": written.verdict.mark,
            "text": written.verdict.text,
            "headline": written.headline,
            "files": [str(path.relative_to(written.folder)) for path in written.files],
        }
    )
