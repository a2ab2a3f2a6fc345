"""Telemetry as files: Parquet with a row a second a node, or JSON lines as they come."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from spark_cluster.bench.telemetry import Row
from spark_cluster.errors import UsageError, install_extra

KINDS = {"Moment": "timestamp", "str": "string", "int": "int32", "float": "float32"}
"""Of the file of rows: a field's type, and pyarrow's name for it; rates of bytes are float64."""

COLUMNS = {
    field.name: "float64"
    if field.name.endswith("_bytes_s")
    else KINDS[str(field.type).partition(" ")[0]]
    for field in fields(Row)
    if field.name not in ("processes", "notes")
}
"""Of the file of rows: names as in `Row`, and types as pyarrow calls them."""

PROCESS_COLUMNS = {
    "time": "timestamp", "node": "string", "pid": "int32", "name": "string", "used_mib": "int32",
}  # fmt: skip
"""Of the file of processes: a row for each process at each reading."""

ROWS = TypeAdapter(Row)

GROUP = 600
"""Rows that are written at once."""


def processes_path(path: Path) -> Path:
    """Return the file of the processes' memory next to a file of rows.

    >>> processes_path(Path("run/telemetry.parquet")).name
    'telemetry-processes.parquet'
    """
    return path.with_name(f"{path.stem}-processes{path.suffix}")


class JsonLinesWriter:
    """A file with a JSON line a row, written as it comes."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("x", encoding="utf-8")

    def write(self, row: Row) -> None:
        """Add a row."""
        self._out.write(json.dumps(row.to_dict()) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Close the file."""
        self._out.close()


class LateParquetWriter(JsonLinesWriter):
    """A Parquet file that is made of JSON lines at the end.

    Without its end a Parquet file cannot be read. The lines can, whenever the program is killed;
    they are in `lines_path`, and removed when the Parquet file is there.

    Raises:
        UsageError: pyarrow is not installed.
        OSError: the lines cannot be written.
    """

    def __init__(self, path: Path) -> None:
        need_pyarrow()
        super().__init__(lines_path(path))
        self._path = path

    def close(self) -> None:
        """Make the Parquet file."""
        super().close()
        lines = lines_path(self._path)
        with lines.open(encoding="utf-8") as data:
            write_parquet(self._path, filter(None, map(row_of_line, data)))
        lines.unlink()


def lines_path(path: Path) -> Path:
    """Return the file of lines that a Parquet file is made of at the end.

    >>> lines_path(Path("run.parquet")).name
    'run.parquet.jsonl'
    """
    return path.with_name(f"{path.name}.jsonl")


def row_of_line(line: str) -> Row | None:
    """Return the row that `JsonLinesWriter` wrote; None for a line that was cut."""
    try:
        return ROWS.validate_json(line)
    except ValueError:
        return None


def writer(path: Path) -> JsonLinesWriter:
    """Return what writes a file: Parquet for `.parquet`, otherwise JSON lines.

    Raises:
        UsageError: the file is there already, or pyarrow is wanted and not installed.
        OSError: it cannot be written.
    """
    if path.exists():
        raise UsageError(f"{path} exists", hint="name a new file, or remove it first")
    if path.suffix != ".parquet":
        return JsonLinesWriter(path)
    if lines_path(path).exists():
        raise UsageError(
            f"{lines_path(path)} exists, of a recording that was killed",
            hint="it has all samples as JSON lines; name a new file, or move it away first",
        )
    return LateParquetWriter(path)


def write_parquet(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to a Parquet file, and the processes' memory next to it: whole, or not at all.

    Raises:
        UsageError: pyarrow is not installed.
        OSError: the files cannot be written.
    """
    arrow, left = need_pyarrow(), iter(rows)
    import pyarrow.parquet

    new = path.with_name(f".new-{path.name}")
    with contextlib.ExitStack() as stack:
        schemas = {
            place: arrow.schema([(name, _kind(arrow, kind)) for name, kind in columns.items()])
            for place, columns in ((new, COLUMNS), (processes_path(new), PROCESS_COLUMNS))
        }
        made = [
            stack.enter_context(pyarrow.parquet.ParquetWriter(place, schema, compression="zstd"))
            for place, schema in schemas.items()
        ]
        while group := list(islice(left, GROUP)):
            figures = [{name: getattr(row, name) for name in COLUMNS} for row in group]
            held = [
                {"time": row.time, "node": row.node, **process.model_dump()}
                for row in group
                for process in row.processes or ()
            ]
            for out, found in zip(made, (figures, held), strict=True):
                out.write_table(arrow.Table.from_pylist(found, schema=out.schema))
    processes_path(new).replace(processes_path(path))
    new.replace(path)


def _kind(arrow: Any, kind: str) -> Any:
    return arrow.timestamp("us", tz="UTC") if kind == "timestamp" else getattr(arrow, kind)()


def need_pyarrow() -> Any:
    """Import pyarrow.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise UsageError(
            "Parquet files need pyarrow, which is not installed",
            hint=f"{install_extra('bench')}; `top` can also record JSON lines: --record FILE.jsonl",
        ) from None
    return pyarrow
