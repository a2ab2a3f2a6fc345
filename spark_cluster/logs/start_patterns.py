"""The lines that engines log when they start, and those by which a log's engine is known.

They are data, in `start_patterns.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Pattern:
    """A line of the start: its name for people, a literal of it, what to read from it.

    Attributes:
        provisional: another pattern of the same name goes before it, although its line is later.
    """

    name: str
    has: str
    pattern: re.Pattern[str]
    shown: str = "{0}"
    provisional: bool = False


@dataclass(frozen=True)
class EngineLog:
    """The log of an inference engine.

    Attributes:
        name: of the engine, as people write it.
        patterns: the lines of its start, in their order.
        first: name of the fact that its first lines tell.
        up: literal of its log when it takes requests.
        end: literal of its log when it was asked to stop; empty where that is not known.
        signs: literals that no other engine logs.
    """

    name: str
    patterns: tuple[Pattern, ...]
    first: str
    up: str
    signs: Sequence[str]
    end: str = ""


def _pattern(row: Mapping[str, Any]) -> Pattern:
    return Pattern(**{**row, "pattern": re.compile(row["pattern"])})


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SHARED = {name: tuple(map(_pattern, rows)) for name, rows in _FILE["shared"].items()}


def _engine(lines: Sequence[Mapping[str, Any]], **about: Any) -> EngineLog:
    found = (_SHARED[row["shared"]] if "shared" in row else (_pattern(row),) for row in lines)
    return EngineLog(patterns=tuple(chain.from_iterable(found)), **about)


(REQUESTS,) = _SHARED["requests"]
ENGINES = tuple(_engine(**engine) for engine in _FILE["engine"])
VLLM, SGLANG = ENGINES
