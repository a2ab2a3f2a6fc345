"""The page of JSON output: which command prints which document, and the events of a run."""

from __future__ import annotations

from pydantic import TypeAdapter

from docs.generate import docstring, fields
from docs.generate.code import OUTPUTS, event_classes
from docs.generate.markdown import code, page, paragraphs, plain, table

INTRODUCTION = """\
With `--json`, a command prints one JSON document and nothing else on standard output; text for
people goes to standard error. The [exit status](exit-status.md) is the same. An error before there
is a result has the form of [error.json](../schema/error.json)."""

MADE = """\
These JSON Schemas are made from the types of the results that the program prints."""

WITHOUT = "Every command is listed but `lab ssh`, which connects a terminal to a node."

EVENTS = """\
Everything that happens in a run is an event. Each is a line of JSON in the run's record on the
laptop, `~/.local/state/spark-cluster/runs/RUN.jsonl` ([event.json](../schema/event.json));
`at` is the time in seconds since 1970 (UTC), `seconds` are durations."""


def render() -> str:
    """The page."""
    documents = paragraphs("## Documents of commands", MADE, _documents(), WITHOUT)
    return page("JSON output", INTRODUCTION, documents, paragraphs("## Events", EVENTS, _events()))


def _documents() -> str:
    rows = [
        (
            code(f"spark-cluster {command} --json"),
            f"[{name}](../schema/output-{name}.json)",
        )
        for name, (command, _) in OUTPUTS.items()
    ]
    return table(("command", "schema"), rows)


def _events() -> str:
    rows = []
    for kind in event_classes():
        doc = docstring.parse(kind)
        properties = TypeAdapter(kind).json_schema(mode="serialization")["properties"]
        listed = [f"{code(n)} {fields.kind(s)}" for n, s in properties.items() if n != "at"]
        meanings = [f"{code(name)}: {plain(text)}" for name, text in doc.arguments.items()]
        meaning = " ".join([plain(doc.summary), *meanings])
        rows.append((code(kind.__name__), ", ".join(listed), meaning))
    return table(("event", "fields", "meaning"), rows)
