"""Reads a run's folder. It may be somebody else's: nothing in it is believed unchecked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spark_cluster.bench.record import Record
from spark_cluster.bench.report.formats import printable
from spark_cluster.bench.report.telemetry import Telemetry, read_telemetry
from spark_cluster.errors import InvalidFile

RECORD_FILE = "run.json"
TELEMETRY_FILE = "telemetry.parquet"
MAX_RECORD_BYTES = 256 * 1024**2
MAX_NUMBER = 1e15
"""Nothing that is measured comes near it; a plot of more fails in ways that help nobody."""


MOST = {"cells": 20_000, "setups": 200, "nodes": 64}
"""More than any run has; a page of more would be of no use, and its making without an end."""


@dataclass(frozen=True)
class Run:
    """A run as it was read.

    Attributes:
        telemetry: None when the run has none.
    """

    folder: Path
    record: Record
    telemetry: Telemetry | None


def read_run(folder: Path) -> Run:
    """Read the record and the telemetry of a run.

    Raises:
        InvalidFile: there is no record, or a file is not what it should be.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        raise InvalidFile(
            f"no {RECORD_FILE} in this folder",
            where=str(folder),
            hint="Give the folder of one run; `spark-cluster bench fetch` brings it from a node.",
        )
    record = read_record(path)
    telemetry = folder / TELEMETRY_FILE
    return Run(folder, record, read_telemetry(telemetry) if telemetry.is_file() else None)


def read_record(path: Path) -> Record:
    """Read a record; characters that do not print are replaced in all of its texts.

    Raises:
        InvalidFile: it is no JSON, or does not fit the schema of a record.
    """
    if path.stat().st_size > MAX_RECORD_BYTES:
        size = f"{path.stat().st_size / 1024**2:.0f} MiB"
        raise InvalidFile(f"{size} is too large for a record", where=str(path))
    try:
        data = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
        record = Record.model_validate(_clean(data))
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise InvalidFile(f"not a record of a run: {at}: {first['msg']}", where=str(path)) from None
    except RecursionError:
        raise InvalidFile("not a record of a run: nested too deeply", where=str(path)) from None
    except ValueError as error:
        raise InvalidFile(f"not a record of a run: {error}", where=str(path)) from None
    for name, most in MOST.items():
        if (count := len(getattr(record, name))) > most:
            raise InvalidFile(f"{count:,} {name} are more than {most:,}", where=str(path))
    return record


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
