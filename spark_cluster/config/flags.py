"""Flags of an engine as the words of its command line."""

from __future__ import annotations

import json
from collections.abc import Mapping

from spark_cluster.config.recipe_schema import EngineValue


def words(flags: Mapping[str, EngineValue]) -> tuple[str, ...]:
    """Return the command line's words for flags that are given without dashes.

    Sorted by flag: vLLM's compile cache is keyed by them, and a line moved in the recipe shall not
    throw it away.
    """
    return tuple(word for flag in sorted(flags) for word in _words(flag, flags[flag]))


def _words(flag: str, value: EngineValue) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    if isinstance(value, dict):
        return [f"--{flag}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
    return [f"--{flag}", str(value)]
