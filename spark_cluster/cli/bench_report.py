"""`bench report`: a page of a run, its plots, its tables in Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from spark_cluster.cli.app import App


@click.command(name="report")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder for the report.  [default: RUN/report]",
)
@click.pass_obj
def command(app: App, run: Path, out: Path | None) -> None:
    """Write the report of a run: one HTML page, plots as PNG and SVG, tables for a forum.

    RUN is the run's folder, with its run.json. The page loads nothing and can be sent as it is;
    the folder also holds report.md and, for each setup, the files that Spark Arena takes.
    """
    from spark_cluster.bench.report import write_report
    from spark_cluster.bench.run_folder import REPORT

    report = write_report(run, out or run / REPORT)
    if app.as_json:
        app.print_json(
            {
                "folder": str(report.folder),
                "verdict": report.verdict.mark,
                "text": report.verdict.text,
                "headline": report.headline,
                "files": [str(path.relative_to(report.folder)) for path in report.files],
            }
        )
        return
    from spark_cluster.cli.console import mark, painted, styled

    sign = {"ok": "ok", "attention": "warn", "bad": "fail"}[report.verdict.mark]
    app.console.print(styled("{} [bold]{}[/]", mark(sign), report.verdict.title))
    app.console.print(painted(report.headline))
    app.console.print(painted(report.verdict.text))
    page, post = report.files[:2]
    app.console.print(styled("page   {}", page))
    app.console.print(styled("post   {}", post))
    plots = sum(path.suffix == ".png" for path in report.files)
    app.console.print(styled("plots  {} in {}", plots, report.folder / "plots"))
