"""The report's texts: a page that loads nothing, for a desk, a phone or paper, and a forum's post.

The post is Markdown. Both are templates with the same values.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from spark_cluster.bench.record import Record, Setup
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.drawing import Plot
from spark_cluster.bench.report.formats import Table, escape, fenced, moment
from spark_cluster.bench.report.run_verdict import answers, headline, verdict
from spark_cluster.bench.report.sections import Section, run_time

PAGE, POST = "report.html.j2", "report.md.j2"
"""Templates."""

OPEN_ROWS = 40
"""A list of cells longer than this is folded; on paper it is open."""

ENGINES = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path"}


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
    )
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


def engine_command(setup: Setup) -> str:
    """The engine's command line, an argument a line."""
    program = ENGINES.get(setup.engine, setup.engine)
    lines = [f"{program} {shlex.quote(setup.model)}"]
    for flag in setup.flags:
        if flag.startswith("--") or len(lines) == 1:
            lines.append(shlex.quote(flag))
        else:
            lines[-1] += f" {shlex.quote(flag)}"
    return " \\\n  ".join(lines)
