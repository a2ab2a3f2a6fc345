"""The report in Markdown, as it is posted in a forum, and the words that repeat the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from spark_cluster.bench.record import Record, Setup
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.formats import elapsed, moment, number, short
from spark_cluster.bench.report.setup_tables import (
    check_tables,
    node_tables,
    setup_tables,
    vram_table,
)
from spark_cluster.bench.report.table import Table, escape, fenced
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

ENGINES = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path"}


def post(results: Results) -> str:
    """The whole post."""
    record = results.record
    found = verdict(results)
    parts = [
        f"# {escape(found.title)}",
        escape(headline(results)),
        escape(found.text),
        _section(headline_table(results)),
        "\n".join(_answers(results)),
        *(_section(table) for table in comparison_tables(results)),
        _section(sweep_table(results)),
        _section(flagged_table(results)),
        "## All cells",
        "\n".join(f"- {escape(line)}" for line in method(record)),
        *(_section(table, "###") for table in benchy_tables(results)),
        *(_section(t) for t in (served_table(results), answers_table(results))),
        *(_section(table) for table in check_tables(results)),
        _section(acceptance_table(results)),
        _section(prediction_table(results)),
        _section(vram_table(results)),
        *(_section(t) for t in (*setup_tables(results), *node_tables(results))),
        "## Repeat it",
        fenced(repeat(record), "sh"),
        *(_engine(results, setup) for setup in results.setups),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def tables_only(results: Results) -> str:
    """The measured tables alone, to be pasted under words of one's own."""
    tables = [headline_table(results), *comparison_tables(results), *benchy_tables(results)]
    return "\n\n".join(filter(None, (_section(table, "###") for table in tables))) + "\n"


def _section(table: Table, level: str = "##") -> str:
    if not table.rows:
        return ""
    note = f"\n\n{escape(table.note)}" if table.note else ""
    return f"{level} {escape(table.title)}\n\n{table.markdown()}{note}"


def _answers(results: Results) -> Iterator[str]:
    yield "## Which serves which purpose\n"
    for answer in answers(results):
        winner = f"**{escape(answer.winner)}**: " if answer.winner else ""
        yield f"- {escape(answer.purpose)}: {winner}{escape(answer.text)}"


def _engine(results: Results, setup: Setup) -> str:
    label = escape(results.labels[setup.id])
    return f"### Engine, {label}\n\n{fenced(engine_command(setup), 'sh')}" if setup.flags else ""


def method(record: Record) -> tuple[str, ...]:
    """Return how it was measured, a line each."""
    tool = record.tool
    settings = ", ".join(f"{name}={value}" for name, value in sorted(tool.settings.items()))
    caching = "on" if tool.prefix_caching else "off"
    lines = [f"Load generator: {tool.name} {tool.version}, prefix caching {caching}"]
    if tool.latency_mode:
        lines[0] += f", latency mode {tool.latency_mode}"
    lines += [f"Settings: {short(settings)}"] if settings else []
    if record.client:
        trip = record.round_trip_ms
        lines.append(
            f"Load from {record.client}"
            + (f", {number(trip)} ms from the server" if trip is not None else "")
        )
    runs = sorted({cell.runs for cell in record.cells})
    lines.append(f"Runs a cell: {' or '.join(map(str, runs))}; figures: mean ± standard deviation")
    when = f"Measured {moment(record.started)}"
    if took := run_time(record):
        when += f", {took}"
    return (*lines, f"{when}, spark-cluster {record.spark_cluster}")


def run_time(record: Record) -> str:
    """Return the duration of the run; empty when it has no end."""
    from spark_cluster.bench.report.telemetry import from_datetime

    if record.finished is None:
        return ""
    return elapsed(from_datetime(record.finished) - from_datetime(record.started))


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
