"""The report of a run: a page, its plots as files, tables in Markdown, Spark Arena's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_cluster.bench.report.arena import submissions
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.page import page
from spark_cluster.bench.report.post import post
from spark_cluster.bench.report.reading import Run
from spark_cluster.bench.report.verdict import Verdict, headline, verdict
from spark_cluster.bench.run_folder import PAGE
from spark_cluster.errors import UsageError, install_extra
from spark_cluster.node.durable import make_folder, write_file

POST = "report.md"


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        headline: the run in one sentence.
        files: in the folder, the page first.
    """

    folder: Path
    verdict: Verdict
    headline: str
    files: tuple[Path, ...]


def write_report(run: Run, folder: Path) -> Report:
    """Write the report of a run into a folder; what is there of an earlier one is replaced.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        hint = install_extra("bench")
        raise UsageError("a report needs matplotlib", hint=hint) from None
    results = Results(run.record)
    contents = build(results, run)
    written = []
    for name, content in contents.items():
        path = folder / name
        make_folder(path.parent, 0o755)
        write_file(path, content if isinstance(content, bytes) else content.encode(), 0o644)
        written.append(path)
    return Report(folder, verdict(results), headline(results), tuple(written))


def build(results: Results, run: Run) -> dict[str, str | bytes]:
    """Make the files of a report, by their paths in its folder."""
    from spark_cluster.bench.report.drawing import style
    from spark_cluster.bench.report.plots import measured_plots
    from spark_cluster.bench.report.plots_nodes import telemetry_plots, vram_plot

    with style():
        measured = list(measured_plots(results))
        memory = list(vram_plot(results))
        telemetry = list(telemetry_plots(results, run.telemetry))
    found: dict[str, str | bytes] = {
        PAGE: page(results, measured, memory, telemetry),
        POST: post(results),
    }
    for plot in (*measured, *memory, *telemetry):
        found[f"plots/{plot.name}.svg"] = plot.svg
        found[f"plots/{plot.name}.png"] = plot.png
    found.update(submissions(results))
    return found
