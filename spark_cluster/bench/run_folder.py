"""The folder of a run on the laptop: `run.json`, `raw/`, `logs/`.

What is written is whole. What is read may be somebody else's, or a node's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from spark_cluster.bench.record import FORMAT, Record
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.node.durable import write_file
from spark_cluster.node.replies import decoded

T = TypeVar("T", bound=BaseModel)

RECORD = "run.json"
TELEMETRY = "telemetry.parquet"
REPORT = "report"
"""Folder of the run's report."""
PAGE = "report.html"
"""In that folder: the report as a page."""

MAX_BYTES = 256 * 1024**2
"""Of a document; the result of an hour with a figure for every token stays below this."""
MAX_NUMBER = 1e15
"""Nothing that is measured comes near it; a plot of more fails in ways that help no one."""


MOST = {"cells": 20_000, "setups": 200, "nodes": 64}
"""More than any run has; a page of more would be of no use, and its making without an end."""

LARGEST = 1e30
"""A figure is smaller: sums and products of those that a foreign file gives stay finite."""

LATEST = 1e11
"""UNIX seconds that no clock shows: a node's file is foreign input."""


def load_record(run: Path) -> Record:
    """Read the record of a run, from its folder or the file itself.

    It may be somebody else's: characters that do not print are replaced in all of its texts.

    Raises:
        UsageError: there is none.
        InvalidFile: it is no JSON, does not fit the schema of a record, or is of another format.
    """
    hint = (
        f"give the folder of one run, which has a {RECORD}; `spark-cluster bench fetch` brings its "
        "results from the nodes"
    )
    path = run / RECORD if run.is_dir() else run
    record = read_document(path, Record, "a record of a run", FORMAT, hint)
    for name, most in MOST.items():
        if (count := len(getattr(record, name))) > most:
            raise InvalidFile(f"{count:,} {name} are more than {most:,}", where=str(path))
    return record


def read_document(path: Path, model: type[T], what: str, format: str, hint: str) -> T:
    """Read a JSON document of ours, which may be somebody else's.

    Args:
        what: it is, for errors.
        format: that it names.
        hint: where to find one.

    Raises:
        UsageError: there is none.
        InvalidFile: it is no JSON, does not fit the schema, or is of another format.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            size = f"{path.stat().st_size / 1024**2:.0f} MiB"
            raise InvalidFile(f"{size} is too large for {what}", where=str(path))
        data = _clean(json.loads(path.read_bytes(), parse_constant=_refuse_constant))
        if isinstance(data, dict) and data.get("format") != format:
            found = str(data.get("format"))[:40]
            raise InvalidFile(f"format: found {found!r}, expected '{format}'", where=str(path))
        return model.model_validate(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=hint) from None
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:
        why = str(error)
    raise InvalidFile(f"not {what}: {why}", where=str(path))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _clean(item) for key, item in value.items()}
    if isinstance(value, int | float) and not abs(value) < MAX_NUMBER:
        shown = "a number" if isinstance(value, int) or not math.isfinite(value) else f"{value:g}"
        raise ValueError(f"{shown} is out of range")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def save_record(record: Record, folder: Path) -> None:
    """Write the record of a run; it is there whole or as it was before."""
    save_document(record, folder / RECORD)


def save_document(document: BaseModel, path: Path) -> None:
    """Write a document, and the folder that it is in; it is there whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, (document.model_dump_json(indent=1) + "\n").encode(), mode=0o644)


# -- what others wrote -----------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text without control characters, overrides of the writing direction and halves of pairs.

    Neither HTML nor XML can hold all of them, and none is worth showing.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def json_of(files: Mapping[str, str], name: str) -> dict[str, Any] | str:
    """Return the JSON object of a file, or why there is none.

    Args:
        files: their texts by name.
    """
    if name not in files:
        return f"it wrote no result ({name})"
    data = decoded(files[name])
    if data is None:
        return f"{name} is not JSON; it may have been cut while it was written"
    return data if isinstance(data, dict) else f"{name}: expected a JSON object"


def number(value: object) -> float | None:
    """Return a number below LARGEST, as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def moment(seconds: float | None) -> datetime | None:
    """Return the time of UNIX seconds; None for what no clock shows."""
    if seconds is None or not 0 < seconds < LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def numbers(values: object) -> list[float]:
    """Return the numbers of a list; what is not one counts as missing."""
    if not isinstance(values, list):
        return []
    return [found for value in values if (found := number(value)) is not None]
