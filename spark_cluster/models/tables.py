"""Tables of models and images, read once."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """Return a JSON table of `models/data` by its name without `.json`."""
    text = (resources.files(__package__) / "data" / f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
