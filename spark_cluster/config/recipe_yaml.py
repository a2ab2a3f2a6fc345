"""The YAML text of a recipe that the program writes, in the form of those that people write."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap

WIDTH = 98
"""Columns of a line."""


def text_of(document: CommentedMap) -> str:
    """Return the text of a document that `commented` made."""
    from ruamel.yaml import YAML

    writer = YAML()
    writer.width = WIDTH
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    writer.dump(document, stream)
    return _spaced(stream.getvalue())


def commented(data: dict[str, Any]) -> CommentedMap:
    """Return a document to which comments can be added; its texts are quoted where they must."""
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    def made(value: Any) -> Any:
        if isinstance(value, dict):
            return CommentedMap({key: made(inner) for key, inner in value.items()})
        if isinstance(value, list):
            return [made(inner) for inner in value]
        if isinstance(value, str) and "\n" in value:
            return LiteralScalarString(value)
        if isinstance(value, str) and not _plain(value):
            return DoubleQuotedScalarString(value)
        return value

    document = made(data)
    if not isinstance(document, CommentedMap):
        raise TypeError(type(document))
    return document


def _plain(text: str) -> bool:
    """Return whether text may stand unquoted in YAML: no number, no keyword of YAML 1.1."""
    words = ("true", "false", "null", "yes", "no", "on", "off", "none", "auto", "~", "")
    return text == "auto" or (
        text.lower() not in words and not re.fullmatch(r"[-+.\d_eExX]+", text)
    )


def _spaced(text: str) -> str:
    """An empty line before each section, as our own recipes have it."""
    lines: list[str] = []
    for line in text.splitlines():
        opens = re.fullmatch(r"[a-z_]+:( *#.*)?", line)
        after_section = lines and lines[-1].startswith((" ", "-"))
        if lines and (opens or (after_section and not line.startswith((" ", "-")))):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"
