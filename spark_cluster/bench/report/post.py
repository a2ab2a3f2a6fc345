"""The report in Markdown, as it is posted in a forum, and the words that repeat the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from spark_cluster.bench.record import Record, Setup
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.formats import Table, escape, fenced
from spark_cluster.bench.report.run_verdict import answers, headline, verdict
from spark_cluster.bench.report.sections import Section

ENGINES = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path"}


def post(results: Results, sections: Iterable[Section]) -> str:
    """The whole post."""
    found = verdict(results)
    parts = [
        *(f"# {escape(found.title)}", escape(headline(results)), escape(found.text)),
        "\n".join(_answers(results)),
        *(part for section in sections for part in _section(section)),
        *("## Repeat it", fenced(repeat(results.record), "sh")),
        *(_engine(results, setup) for setup in results.setups if setup.flags),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def pasted_tables(sections: Iterable[Section]) -> str:
    """The measured tables alone, to be pasted under words of one's own."""
    tables = (table for section in sections if section.pasted for table in section.tables)
    return "\n\n".join(_table(table, "###") for table in tables) + "\n"


def _section(section: Section) -> Iterator[str]:
    if section.lines:
        yield f"## {section.title}"
        yield "\n".join(f"- {escape(line)}" for line in section.lines)
    yield from (_table(table, "###" if section.lines else "##") for table in section.tables)


def _table(table: Table, level: str) -> str:
    note = f"\n\n{escape(table.note)}" if table.note else ""
    return f"{level} {escape(table.title)}\n\n{table.markdown()}{note}"


def _answers(results: Results) -> Iterator[str]:
    yield "## Which serves which purpose\n"
    for answer in answers(results):
        winner = f"**{escape(answer.winner)}**: " if answer.winner else ""
        yield f"- {escape(answer.purpose)}: {winner}{escape(answer.text)}"


def _engine(results: Results, setup: Setup) -> str:
    label = escape(results.labels[setup.id])
    return f"### Engine, {label}\n\n{fenced(engine_command(setup), 'sh')}"


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
