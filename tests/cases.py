"""Cases of tests that are data, in a TOML file beside the test."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def load(test: str, name: str) -> dict[str, Any]:
    """Return what a file beside a test, or below its folder, says.

    Args:
        test: the test's `__file__`.
        name: of the file.
    """
    return tomllib.loads((Path(test).parent / name).read_text())
