"""The page: one HTML file that loads nothing; light or dark, on a desk, a phone or paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from spark_cluster.bench.record import Setup
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.drawing import PREDICTED, Plot
from spark_cluster.bench.report.formats import moment
from spark_cluster.bench.report.post import engine_command, method, repeat, run_time, tables_only
from spark_cluster.bench.report.setup_tables import (
    check_tables,
    node_tables,
    process_table,
    setup_tables,
    vram_table,
)
from spark_cluster.bench.report.tables import (
    acceptance_table,
    answers_table,
    benchy_tables,
    comparison_tables,
    flagged_table,
    prediction_table,
    served_table,
    sweep_table,
)
from spark_cluster.bench.report.verdict import answers, headline, headline_table, verdict

if TYPE_CHECKING:
    from jinja2 import Environment

OPEN_ROWS = 40
"""A list of cells longer than this is folded; on paper it is open."""


@dataclass(frozen=True)
class SetupText:
    """A setup as the page shows it: its command and its recipe."""

    label: str
    command: str
    recipe: str


def page(
    results: Results,
    measured: Sequence[Plot],
    memory: Sequence[Plot],
    telemetry: Sequence[Plot],
) -> str:
    """The whole page.

    All text of the record is escaped by Jinja; should something get past it, the page's content
    policy runs no script but its own and loads nothing.
    """
    script = _asset("report.js")
    template = _environment().get_template("report.html.j2")
    return template.render(
        run=results.record,
        when=moment(results.record.started),
        took=run_time(results.record),
        verdict=verdict(results),
        headline=headline(results),
        headline_table=headline_table(results),
        answers=list(answers(results)),
        flagged=flagged_table(results),
        comparison=list(comparison_tables(results)),
        cells=[table.without("model") for table in benchy_tables(results)],
        other_cells=[
            table
            for table in (
                sweep_table(results),
                acceptance_table(results),
                served_table(results),
                answers_table(results),
                *check_tables(results),
            )
            if table.rows
        ],
        predictions=prediction_table(results),
        vram=vram_table(results),
        processes=process_table(results),
        environment=[*setup_tables(results), *node_tables(results)],
        measured=[plot for plot in measured if plot.name != PREDICTED],
        predicted=[plot for plot in measured if plot.name == PREDICTED],
        memory=memory,
        telemetry=telemetry,
        method=method(results.record),
        repeat=repeat(results.record),
        setup_texts=[_setup_text(results, setup) for setup in results.record.setups],
        markdown=tables_only(results),
        open_rows=OPEN_ROWS,
        **_assets(script),
    )


def _setup_text(results: Results, setup: Setup) -> SetupText:
    command = engine_command(setup) if setup.flags else ""
    return SetupText(results.labels[setup.id], command, setup.recipe_text.strip())


def _assets(script: str) -> dict[str, Any]:
    from markupsafe import Markup

    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {
        # Our own files, which hold nothing of the record.
        "script": Markup(script),  # noqa: S704
        "style": Markup(_asset("report.css")),  # noqa: S704
        "script_hash": f"sha256-{digest}",
    }


def _asset(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = _drawn
    return environment


def _drawn(plot: Plot) -> Any:
    """A plot's SVG as markup: matplotlib escapes the texts in it."""
    from markupsafe import Markup

    return Markup(plot.inline)  # noqa: S704
