"""JSON: tables of models, images and importers, read once, and objects from files of others."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from spark_cluster.errors import InvalidFile


@cache
def table(name: str, room: str = "models") -> dict[str, Any]:
    """Return a JSON table of the folder `data` of a room, by its name without `.json`."""
    file = resources.files("spark_cluster") / room / "data" / f"{name}.json"
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data


def has_trait(family: str, trait: str) -> bool:
    """Return whether models of a family, by their model_type, have a trait of `families.json`."""
    return family.startswith(tuple(table("families")["traits"][trait]["families"]))


def json_object(text: bytes | str, where: str) -> dict[str, Any]:
    """Return the object that a text holds.

    Raises:
        InvalidFile: it is not JSON, or not an object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"is not JSON: {error}", where=where) from error
    if not isinstance(document, dict):
        raise InvalidFile("should be a JSON object", where=where)
    return document
