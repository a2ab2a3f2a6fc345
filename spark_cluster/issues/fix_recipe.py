"""Edits of a recipe's file: only what is edited changes, comments stay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from io import StringIO
from typing import TYPE_CHECKING, Any

from spark_cluster.issues.match import Edit

if TYPE_CHECKING:
    from ruamel.yaml import YAML

_SEQUENCE = re.compile(r"(?m)^(?P<key> *)[\w-]+:[^\n\S]*(?:#.*)?\n(?P<dash> *)- ")
_WIDE = 1 << 20
"""No line is folded."""


def fixed(text: str, edits: Iterable[Edit], name: str) -> str:
    """Return the recipe's text after the edits.

    ruamel.yaml keeps comments but folds long lines its own way, so what it writes with and without
    the edits is compared, and only the difference goes into the text.

    Args:
        name: of the recipe, which is how its file is called.
    """
    document, plain = _loaded(text), _dumped(_loaded(text), text)
    for edit in edits:
        _apply(document, edit)
    if document.get("name") != name:
        document["name"] = name
    edited = _dumped(document, text)
    return _transplanted(text, plain, edited)


def _loaded(text: str) -> Any:
    return _yaml(text).load(text)


def _dumped(document: Any, text: str) -> str:
    out = StringIO()
    _yaml(text).dump(document, out)
    return out.getvalue()


def _yaml(text: str) -> YAML:
    """Set up to write as the text is written."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDE
    offset = _offset(text)
    yaml.indent(mapping=2, sequence=2 + offset, offset=offset)
    return yaml


def _transplanted(text: str, plain: str, edited: str) -> str:
    """The text with the difference between two others, of which `plain` says the same as it;
    `edited` itself where the difference has no place in the text."""
    original, base, new = (part.splitlines(keepends=True) for part in (text, plain, edited))
    blocks = SequenceMatcher(None, base, original, autojunk=False).get_matching_blocks()
    place = {block.a + i: block.b + i for block in blocks for i in range(block.size)}
    result = list(original)
    changes = SequenceMatcher(None, base, new, autojunk=False).get_opcodes()
    for tag, begin, end, first, last in reversed(changes):
        if tag == "equal":
            continue
        there = [place.get(index) for index in range(begin, end)]
        at = there[0] if there else _after(place, begin)
        if at is None or there != list(range(at, at + len(there))):
            return edited
        result[at : at + len(there)] = new[first:last]
    return "".join(result)


def _after(place: dict[int, int], index: int) -> int | None:
    """Return where new lines go that stand before line `index` of the base."""
    if index - 1 in place:
        return place[index - 1] + 1
    return place.get(index, 0 if index == 0 else None)


def can(edit: Edit) -> bool:
    """Return True when a recipe holds what the edit changes; container options are not in it."""
    return edit.kind != "docker" and edit.name not in ("host", "distributed-executor-backend")


def _offset(text: str) -> int:
    """Return how far the dashes of lists are indented from their key."""
    found = _SEQUENCE.search(text)
    return len(found["dash"]) - len(found["key"]) if found else 0


def _apply(document: Any, edit: Edit) -> None:
    if edit.kind == "image":
        document["image"]["ref"] = edit.value
        document["image"].pop("digest", None)
    elif edit.kind == "env":
        _set(document, "env", edit.name, edit.value)
    elif edit.kind == "recipe":
        document[edit.name] = edit.value
    elif edit.name == "gpu-memory-utilization":
        document["gpu_memory_utilization"] = "auto"  # `up` computes it from what the node has
    elif edit.name == "speculative-config":
        if isinstance(edit.value, dict):
            document["drafter"]["method"] = edit.value["method"]
        else:
            document.pop("drafter", None)
    else:
        _set(document, "engine_args", edit.name, edit.value)


def _set(document: Any, section: str, name: str, value: Any) -> None:
    """Set or remove a key of a section; an empty section is removed too."""
    if value is None:
        document.get(section, {}).pop(name, None)
        if section in document and not document[section]:
            document.pop(section)
    else:
        document.setdefault(section, {})[name] = value
