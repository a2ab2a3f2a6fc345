"""What a benchmark run in the lab leaves on the laptop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record(folder: Path) -> dict[str, Any]:
    """The record in the folder of a run."""
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found
