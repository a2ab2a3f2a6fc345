"""Tables of models, images and importers, read once."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def table(name: str, room: str = "models") -> dict[str, Any]:
    """Return a JSON table of the folder `data` of a room, by its name without `.json`."""
    file = resources.files("spark_cluster") / room / "data" / f"{name}.json"
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data
