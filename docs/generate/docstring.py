"""Docstrings in the form that this project writes: text, then Args, Raises, Example."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Example):$")
_ENTRY = re.compile(r"^([\w`.]+(?:, [\w`.]+)*): (.*)$")


@dataclass(frozen=True)
class Docstring:
    """A docstring in its parts.

    Attributes:
        summary: the first paragraph.
        text: what follows it, up to the first section.
        arguments: name to meaning, of Args and Attributes.
        raises: error to reason.
        returns: what a function returns.
        example: code.
    """

    summary: str
    text: str
    arguments: dict[str, str]
    raises: dict[str, str]
    example: str
    returns: str = ""


def parse(thing: object) -> Docstring:
    """Return the parts of the thing's own docstring, empty where it has none."""
    own = thing.__dict__.get("__doc__") if isinstance(thing, type) else None
    found = (own if isinstance(thing, type) else inspect.getdoc(thing)) or ""
    if isinstance(thing, type) and found.startswith(f"{thing.__name__}("):
        found = ""  # what dataclasses write where there is none
    return of_text(found)


def of_text(text: str) -> Docstring:
    """Return the parts of a docstring's text."""
    sections = _sections(inspect.cleandoc(text))
    summary, _, more = sections.get("", "").partition("\n\n")
    return Docstring(
        " ".join(summary.split()),
        more.strip(),
        {**_entries(sections.get("Args", "")), **_entries(sections.get("Attributes", ""))},
        _entries(sections.get("Raises", "")),
        textwrap.dedent(sections.get("Example", "")).strip(),
        " ".join(sections.get("Returns", "").split()),
    )


def _sections(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading:
            name = heading[1]
            found[name] = []
        elif name and line and not line.startswith(" "):  # ordinary text again
            name = ""
            found[name].append(line)
        else:
            found[name].append(line)
    return {key: "\n".join(lines).strip("\n") for key, lines in found.items()}


def _entries(text: str) -> dict[str, str]:
    """`name, other: meaning`, with indented lines that go on."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in textwrap.dedent(text).splitlines():
        entry = None if line.startswith(" ") else _ENTRY.match(line)
        if entry:
            names = entry[1].replace("`", "").split(", ")
            found.update(dict.fromkeys(names, entry[2]))
        else:
            found.update({name: f"{found[name]} {line.strip()}".strip() for name in names})
    return found
