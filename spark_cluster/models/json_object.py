"""JSON objects from files of others."""

from __future__ import annotations

import json
from typing import Any

from spark_cluster.errors import InvalidFile


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
