"""Carries edits out in a recipe's file: only what is edited changes, comments stay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import StringIO
from typing import Any

from spark_cluster.issues.finding import Edit

_SEQUENCE = re.compile(r"(?m)^(?P<key> *)[\w-]+:[^\n\S]*(?:#.*)?\n(?P<dash> *)- ")
_WIDE = 1 << 20
"""No line is folded."""


def fixed(text: str, edits: Iterable[Edit], name: str) -> str:
    """The recipe's text after the edits.

    Args:
        name: of the recipe, which is how its file is called.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDE
    offset = _offset(text)
    yaml.indent(mapping=2, sequence=2 + offset, offset=offset)
    document = yaml.load(text)
    for edit in edits:
        _apply(document, edit)
    if document.get("name") != name:
        document["name"] = name
    out = StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def can(edit: Edit) -> bool:
    """Whether a recipe holds what the edit changes; how the container is run is not in it."""
    return edit.kind != "docker" and edit.name not in ("host", "distributed-executor-backend")


def _offset(text: str) -> int:
    """How far the dashes of lists stand in from their key."""
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
    """Sets or takes out a key of a section; an empty section goes too."""
    if value is None:
        document.get(section, {}).pop(name, None)
        if section in document and not document[section]:
            document.pop(section)
    else:
        document.setdefault(section, {})[name] = value
