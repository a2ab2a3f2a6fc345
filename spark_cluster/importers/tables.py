"""The importers' tables, read once."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """A JSON table of `importers/data` by its name without `.json`."""
    text = (resources.files("spark_cluster.importers") / "data" / f"{name}.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
