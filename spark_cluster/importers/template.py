"""Fills the `{key}` places of a command that another tool's recipe holds."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from spark_cluster.errors import InvalidFile

_PLACE = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLACE_OR_DOUBLED = re.compile(r"\{\{|\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ROUNDS = 5
"""A value may hold places itself: `http://localhost:{port}`."""
_LONGEST = 200_000


def places(template: str) -> set[str]:
    """The keys that a template asks for."""
    return set(_PLACE.findall(template))


def fill(template: str, values: Mapping[str, Any], where: str) -> str:
    """The command with all places filled.

    A doubled brace stands for one, as in the first versions of both formats; JSON with plain braces
    passes as it is.

    Args:
        template: with `{key}` places.
        values: by key.
        where: file and line, for messages.

    Raises:
        InvalidFile: a placeholder has no value, there is a circular reference, or it is too long.
    """
    pattern = _PLACE_OR_DOUBLED if "{{" in template else _PLACE
    text = _round(pattern, template, values, where)
    for _ in range(_ROUNDS):
        asked = places(text) & set(values)
        if not asked:
            break
        text = _round(_PLACE, text, values, where)
    missing = sorted(places(text))
    if missing:
        raise InvalidFile(
            f"the command asks for {', '.join('{' + name + '}' for name in missing)}, for which "
            "there is no value",
            where=where,
            hint="add it to defaults, or take it out of the command",
        )
    return text


def _round(pattern: re.Pattern[str], text: str, values: Mapping[str, Any], where: str) -> str:
    size = len(text)

    def one(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        if found[1] not in values:
            return found[0]
        value = as_word(values[found[1]])
        nonlocal size
        size += len(value)
        if size > _LONGEST:  # before it is made: many places of a long value take all memory
            raise InvalidFile(
                f"the command is longer than {_LONGEST} characters with its values: is there a "
                "circular reference among them?",
                where=where,
            )
        inside = text[found.start() - 1 : found.start()] in ("'", '"')
        return shlex.quote(value) if value.startswith(("{", "[")) and not inside else value

    return pattern.sub(one, text)


def as_word(value: Any) -> str:
    """A value of YAML as a word of a command line."""
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
