"""The page: one HTML file that loads nothing; light or dark, on a desk, a phone or paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.drawing import Plot
from spark_cluster.bench.report.formats import moment
from spark_cluster.bench.report.post import engine_command, pasted_tables, repeat
from spark_cluster.bench.report.run_verdict import answers, headline, verdict
from spark_cluster.bench.report.sections import Section, run_time

if TYPE_CHECKING:
    from jinja2 import Environment

OPEN_ROWS = 40
"""A list of cells longer than this is folded; on paper it is open."""


def page(results: Results, sections: Iterable[Section]) -> str:
    """The whole page.

    All text of the record is escaped by Jinja; should something get past it, the page's content
    policy runs no script but its own and loads nothing.
    """
    from markupsafe import Markup

    # Our own files, which hold nothing of the record.
    script, styles = Markup(_asset("report.js")), Markup(_asset("report.css"))  # noqa: S704
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    commands = {setup.id: engine_command(setup) for setup in results.record.setups if setup.flags}
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            run=results.record,
            when=moment(results.record.started),
            took=run_time(results.record),
            verdict=verdict(results),
            headline=headline(results),
            answers=list(answers(results)),
            sections=list(sections),
            repeat=repeat(results.record),
            labels=results.labels,
            commands=commands,
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
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def drawn(plot: Plot) -> Any:
        return Markup(plot.inline)  # noqa: S704  matplotlib escapes the texts in it

    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = drawn
    return environment
