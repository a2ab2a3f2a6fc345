"""The report of a run: a page, its plots as files, tables in Markdown, Spark Arena's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spark_cluster.bench.report import page
from spark_cluster.bench.report.arena import submissions
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.plots_nodes import NodeTelemetry, read_telemetry
from spark_cluster.bench.report.run_verdict import RunVerdict, headline, verdict
from spark_cluster.bench.report.sections import sections
from spark_cluster.bench.run_folder import PAGE, TELEMETRY, load_record
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
    verdict: RunVerdict
    headline: str
    files: tuple[Path, ...]


def write_report(run: Path, folder: Path) -> Report:
    """Write the report of a run into a folder; what is there of an earlier one is replaced.

    Args:
        run: its folder. It may be somebody else's: nothing in it is believed unchecked.

    Raises:
        UsageError: there is no record, or matplotlib is not installed.
        InvalidFile: a file is not what it should be.
    """
    results, telemetry = Results(load_record(run)), read_telemetry(run / TELEMETRY)
    if find_spec("matplotlib") is None:
        raise UsageError("a report needs matplotlib", hint=install_extra("bench"))
    written = []
    for name, content in build(results, telemetry).items():
        path = folder / name
        make_folder(path.parent, 0o755)
        write_file(path, content if isinstance(content, bytes) else content.encode(), 0o644)
        written.append(path)
    return Report(folder, verdict(results), headline(results), tuple(written))


def build(results: Results, telemetry: Sequence[NodeTelemetry]) -> dict[str, str | bytes]:
    """Make the files of a report, by their paths in its folder."""
    parts = sections(results, telemetry)
    found: dict[str, str | bytes] = {
        PAGE: page.render(page.PAGE, results, parts),
        POST: page.render(page.POST, results, parts),
    }
    for plot in (plot for section in parts for plot in section.plots):
        found[f"plots/{plot.name}.svg"] = plot.svg
        found[f"plots/{plot.name}.png"] = plot.png
    return {**found, **dict(submissions(results))}
