"""The report of a run: a page, its plots as files, tables in Markdown, Spark Arena's files.

The page loads nothing: it is for a desk, a phone or paper. The post for a forum is Markdown. Both
are templates with the same sections, in one order.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import dropwhile
from pathlib import Path
from typing import Annotated

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from spark_cluster.bench.record import PAGE, TELEMETRY, Record, Setup, load_record
from spark_cluster.bench.report import tables
from spark_cluster.bench.report.plots import (
    NodeTelemetry,
    from_datetime,
    measured_plots,
    predicted_plot,
    read_telemetry,
    telemetry_plots,
    vram_plot,
)
from spark_cluster.bench.report.rendering import (
    Plot,
    Table,
    escape,
    fenced,
    file_name,
    moment,
    style,
)
from spark_cluster.bench.report.results import Results, RunVerdict, answers, headline, verdict
from spark_cluster.bench.report.tables import benchy_rows
from spark_cluster.config.schema import Document, PrintedAs, derived
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.output import counted, elapsed

POST = "report.md"

OPEN_ROWS = 16
"""A list of cells longer than this is folded; on paper it is open."""


def _mark(verdict: RunVerdict) -> str:
    return verdict.mark


@dataclass(frozen=True)
class Report(Document):
    """A report that was written.

    Attributes:
        verdict: ok, attention or bad.
        headline: the run in one sentence.
        files: in the folder, the page first.
        text: how many cells were measured, and what is wrong with which.
    """

    folder: Path
    verdict: Annotated[RunVerdict, PrintedAs(_mark)]
    headline: str
    files: tuple[Path, ...]
    text = derived(str, "verdict.text")


def write_report(run: Path, folder: Path) -> Report:
    """Write the report of a run into a folder; what is there of an earlier one is replaced.

    Args:
        run: its folder. It may be somebody else's: nothing in it is believed unchecked.

    Raises:
        UsageError: there is no record, or matplotlib is not installed.
        InvalidFile: a file is not what it should be.
    """
    results, telemetry = Results(load_record(run)), read_telemetry(run / TELEMETRY)
    written = []
    for name, content in build(results, telemetry).items():
        path = folder / name
        make_folder(path.parent, 0o755)
        write_file(path, content if isinstance(content, bytes) else content.encode(), 0o644)
        written.append(Path(name))
    return Report(folder, verdict(results), headline(results), tuple(written))


def build(results: Results, telemetry: Sequence[NodeTelemetry]) -> dict[str, str | bytes]:
    """Make the files of a report, by their paths in its folder."""
    parts = sections(results, telemetry)
    found: dict[str, str | bytes] = {
        PAGE: render(f"{PAGE}.j2", results, parts),
        POST: render(f"{POST}.j2", results, parts),
    }
    for plot in (plot for section in parts for plot in section.plots):
        found[f"plots/{plot.name}.svg"] = plot.svg
        found[f"plots/{plot.name}.png"] = plot.png
    return {**found, **dict(submissions(results))}


# -- its sections ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        name: its anchor on the page, and the class of its tables.
        link: its name in the page's navigation; empty: it is not there.
        tables: those that have a row.
        lines: how it was measured, above the tables; a heading of the post stands above them.
        note: below the plots.
        absent: what the page says where there is neither table nor plot; empty: the page is
            without the section then.
        pasted: it is part of the tables that are pasted under words of one's own.
        folded: on a phone only its title and what is in it are shown, until someone asks for it.
    """

    name: str
    title: str
    link: str = ""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""
    absent: str = ""
    pasted: bool = False
    folded: bool = False

    @property
    def amount(self) -> str:
        """How many plots and tables it has."""
        parts = (counted(len(self.plots), "plot"), counted(len(self.tables), "table"))
        return ", ".join(part for part in parts if not part.startswith("0 "))

    @property
    def is_empty(self) -> bool:
        """True where nothing of it was measured."""
        return not self.tables and not self.plots


def sections(results: Results, telemetry: Sequence[NodeTelemetry]) -> tuple[Section, ...]:
    """Make all sections of a report, as `tables.toml` declares them, the plots drawn."""
    with style():
        plots = {
            "measured": tuple(measured_plots(results)),
            "predicted": tuple(predicted_plot(results)),
            "memory": tuple(vram_plot(results)),
            "telemetry": tuple(telemetry_plots(results, telemetry)),
        }
    parts = []
    for about in tables.DECLARED["section"]:
        made = (tables.tables_of(results, name) for name in about.get("tables", ()))
        found = tuple(table for each in made for table in each if table.rows)
        lines = how_measured(results.record, about.get("lines", ()))
        drawn = plots.get(about.get("plots", ""), ())
        parts.append(Section(**{**about, "tables": found, "plots": drawn, "lines": lines}))
    terms = tables.terms_table(table for part in parts for table in part.tables)
    shown = (terms,) if terms.rows else ()
    return (*parts, Section("terms", terms.title, terms.title, shown, folded=True))


def how_measured(record: Record, lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that say how a run was measured, from their templates."""
    about = {"run": record, "tool": record.tool, "took": run_time(record)}
    made = (tables.said(line, **about) for line in lines)
    return tuple(filter(None, made))


def run_time(record: Record) -> str:
    """Return the duration of a run; empty when it has no end."""
    if record.finished is None:
        return ""
    return elapsed(from_datetime(record.finished) - from_datetime(record.started))


# -- its texts -------------------------------------------------------------------------------------


def render(template: str, results: Results, sections: Sequence[Section]) -> str:
    """Return the page or the post.

    On the page all text of the record is escaped by Jinja; should something get past it, the
    page's content policy runs no script but its own and loads nothing.
    """
    # Our own files, which hold nothing of the record.
    script, styles = Markup(_asset("report.js")), Markup(_asset("report.css"))  # noqa: S704
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            run=results.record,
            setups=results.setups,
            when=moment(results.record.started),
            took=run_time(results.record),
            verdict=verdict(results),
            headline=headline(results),
            answers=list(answers(results)),
            sections=sections,
            repeat=repeat(results.record),
            labels=results.labels,
            commands={s.id: engine_command(s) for s in results.record.setups if s.flags},
            markdown=pasted_tables(sections),
            open_rows=OPEN_ROWS,
            script=script,
            style=styles,
            script_hash=f"sha256-{digest}",
        )
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        undefined=StrictUndefined,
        autoescape=select_autoescape(("html.j2",)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    environment.filters.update(drawn=_drawn, plain=escape, titled=_titled, fenced=fenced)
    return environment


def _drawn(plot: Plot) -> Markup:
    return Markup(plot.inline)  # noqa: S704  matplotlib escapes the texts in it


def pasted_tables(sections: Sequence[Section]) -> str:
    """Return the measured tables alone, to be pasted under words of one's own."""
    tables = (table for section in sections if section.pasted for table in section.tables)
    return "\n\n".join(_titled(table, "###") for table in tables) + "\n"


def _titled(table: Table, level: str) -> str:
    note = f"\n\n{escape(table.note)}" if table.note else ""
    return f"{level} {escape(table.title)}\n\n{table.markdown()}{note}"


def repeat(record: Record) -> str:
    """The commands that do it again."""
    again = f"spark-cluster bench repeat {shlex.quote(record.id)}"
    if not record.command:
        return again
    return f"{shlex.join(record.command)}\n# or, from a copy of this run's folder:\n{again}"


# -- Spark Arena's submission files, a folder for each setup (source: sparkrun) --------------------

METRICS = ("t_s", "t_s_req", "peak_ts", "peak_ts_req", "ttfr", "est_ppt", "e2e_ttft")
COLUMNS = ("model", "test_name", *(f"{m}_{part}" for m in METRICS for part in ("mean", "std")))
"""Of llama-benchy's CSV, which is what a submission holds."""

RUNTIMES = {("vllm", "ray"): "vllm-ray", ("vllm", "mp"): "vllm-distributed"}
"""sparkrun's names for an engine and its executor."""

ENGINES = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path"}


def submissions(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file; setups without a cell have none."""
    used: set[str] = set()
    for setup in results.setups:
        if not results.cells(setup):
            continue
        name = file_name(setup.id)
        while name.lower() in used:
            name += "-"
        used.add(name.lower())
        yield from _submission(results, setup, f"arena/{name}")


def _submission(results: Results, setup: Setup, folder: str) -> Iterator[tuple[str, str]]:
    """Yield a setup's recipe in sparkrun's form, its figures, and what else is known of it."""
    run, tool = results.record, results.record.tool
    nodes = [node for node in run.nodes if node.name in setup.nodes]
    environment = dict(nodes[0].environment) if nodes else {}
    for node in nodes[1:]:  # what is of one node only is no part of a recipe
        environment = {k: v for k, v in environment.items() if node.environment.get(k) == v}
    templates = _environment()
    # By the digest that others can pull it by, where there is one.
    image = setup.image_repo_digest or setup.image_digest
    recipe = templates.get_template("arena-recipe.yaml.j2").render(
        setup=setup,
        image=image,
        runtime=RUNTIMES.get((setup.engine, setup.executor), setup.engine),
        environment=environment,
        command=engine_command(setup),
    )
    settings = {"latency_mode": tool.latency_mode, "prefix_caching": tool.prefix_caching}
    metadata = templates.get_template("arena-metadata.json.j2").render(
        setup=setup,
        run=run,
        image=image,
        digest=hashlib.sha256(recipe.encode()).hexdigest(),
        seconds=from_datetime(run.finished) - from_datetime(run.started) if run.finished else None,
        settings={**settings, **tool.settings},
    )
    yield f"{folder}/recipe.yaml", recipe
    yield f"{folder}/benchmark.csv", _csv(results, setup)
    yield f"{folder}/metadata.json", metadata


def _csv(results: Results, setup: Setup) -> str:
    cells = results.cells(setup)
    several = any(cell.key.concurrency > 1 for cell in cells)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for cell in cells:
        for test, metrics in benchy_rows(cell, concurrency=several):
            figures = [value for m in metrics for value in ((m.mean, m.std) if m else (None, None))]
            writer.writerow([_no_formula(setup.model), test, *figures])
    return out.getvalue()


def _no_formula(text: str) -> str:
    """Text that a spreadsheet does not compute."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def engine_command(setup: Setup) -> str:
    """The engine's command line, an argument a line, with the model by its name.

    The recorded flags may be those of the whole command as it was started, with the model's folder.
    """
    program = ENGINES.get(setup.engine, setup.engine)
    lines = [f"{program} {shlex.quote(setup.model)}"]
    flags = [*dropwhile(lambda word: not word.startswith("--"), setup.flags)]
    for flag in flags[2:] if flags[:1] == ["--model-path"] else flags:
        if flag.startswith("--"):
            lines.append(shlex.quote(flag))
        else:
            lines[-1] += f" {shlex.quote(flag)}"
    return " \\\n  ".join(lines)
