"""Cases of tests that are data, in a TOML file beside the test."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def load(test: str, name: str) -> dict[str, Any]:
    """Return what a file beside a test says.

    Args:
        test: the test's `__file__`.
        name: of the file.
    """
    return tomllib.loads(Path(test).with_name(name).read_text())
