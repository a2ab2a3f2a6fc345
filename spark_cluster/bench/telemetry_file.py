"""Telemetry as files: Parquet with a row a second a node, or JSON lines as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.telemetry import Row
from spark_cluster.errors import UsageError, install_extra

COLUMNS = {
    "time": "timestamp", "node": "string",
    "sm_clock_mhz": "float32", "power_w": "float32", "temperature_c": "float32",
    "throttle": "string",
    "mem_available_mib": "int32", "swap_used_mib": "int32", "gpu_mem_mib": "int32",
    "rdma_rx_bytes_s": "float64", "rdma_tx_bytes_s": "float64",
    "net_rx_bytes_s": "float64", "net_tx_bytes_s": "float64",
    "running": "int32", "waiting": "int32", "kv_usage": "float32", "acceptance": "float32",
    "prompt_tps": "float32", "generation_tps": "float32", "utilisation": "float32",
    "mem_total_mib": "int32", "link_rx_bytes_s": "float64", "link_tx_bytes_s": "float64",
    "rdma_errors": "int32", "swap_bytes_s": "float64", "preemptions": "int32",
}  # fmt: skip
"""Of the file of rows: names as in `Row`, and types as pyarrow calls them."""

PROCESS_COLUMNS = {
    "time": "timestamp", "node": "string", "pid": "int32", "name": "string", "used_mib": "int32",
}  # fmt: skip
"""Of the file of processes: a row for each process at each reading."""

GROUP = 600
"""Rows that are written at once."""


class Writer(Protocol):
    """A file that rows are written to."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


def processes_path(path: Path) -> Path:
    """Return the file of the processes' memory next to a file of rows.

    >>> processes_path(Path("run/telemetry.parquet")).name
    'telemetry-processes.parquet'
    """
    return path.with_name(f"{path.stem}-processes{path.suffix}")


class ParquetWriter:
    """A Parquet file of rows, and next to it one of the processes' memory.

    Args:
        path: of the first; see `processes_path`.

    Raises:
        UsageError: pyarrow is not installed.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._tables = (_Table(path, COLUMNS), _Table(processes_path(path), PROCESS_COLUMNS))

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, row: Row) -> None:
        """Add a row."""
        rows, processes = self._tables
        rows.add({name: getattr(row, name) for name in COLUMNS})
        for process in row.processes or ():
            processes.add({"time": row.time, "node": row.node, **process.model_dump()})

    def close(self) -> None:
        """Write what is left, and the end without which the files cannot be read."""
        for table in self._tables:
            table.close()


class _Table:
    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        arrow = need_pyarrow()
        import pyarrow.parquet

        kinds = {name: _kind(arrow, kind) for name, kind in columns.items()}
        self._schema = arrow.schema(list(kinds.items()))
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._writer.write_table(need_pyarrow().Table.from_pylist(rows, schema=self._schema))


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


class LateParquetWriter:
    """A Parquet file that is made of JSON lines at the end.

    Without its end a Parquet file cannot be read. The lines can, whenever the program is killed;
    they are in `lines_path`, and removed when the Parquet file is there.

    Raises:
        UsageError: pyarrow is not installed.
        OSError: the lines cannot be written.
    """

    def __init__(self, path: Path) -> None:
        need_pyarrow()
        self._path = path
        self._lines = JsonLinesWriter(lines_path(path))

    def write(self, row: Row) -> None:
        """Add a row."""
        self._lines.write(row)

    def close(self) -> None:
        """Make the Parquet file."""
        self._lines.close()
        lines = lines_path(self._path)
        new = self._path.with_name(f".new-{self._path.name}")
        with lines.open(encoding="utf-8") as data:
            write_parquet(new, filter(None, map(row_of_line, data)))
        processes_path(new).replace(processes_path(self._path))
        new.replace(self._path)
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
        data = json.loads(line)
        held = data.pop("processes")
        processes = None if held is None else tuple(ProcessMemory(**one) for one in held)
        time, notes = datetime.fromisoformat(data.pop("time")), tuple(data.pop("notes"))
        return Row(time=time, processes=processes, notes=notes, **data)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def writer(path: Path) -> Writer:
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
    """Write all rows to a Parquet file, and the processes' memory next to it."""
    with ParquetWriter(path) as out:
        for row in rows:
            out.write(row)


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a file that `ParquetWriter` wrote, with the processes' memory.

    Raises:
        UsageError: pyarrow is not installed.
        OSError: the file cannot be read.
    """
    need_pyarrow()
    import pyarrow.parquet

    held: dict[tuple[Any, str], list[ProcessMemory]] = {}
    companion = processes_path(path)
    if companion.exists():
        for data in pyarrow.parquet.read_table(companion).to_pylist():
            process = ProcessMemory(**{name: data[name] for name in ("pid", "name", "used_mib")})
            held.setdefault((data["time"], data["node"]), []).append(process)
    for data in pyarrow.parquet.read_table(path).to_pylist():
        processes = held.get((data["time"], data["node"]))
        known = {name: data.get(name) for name in COLUMNS}
        yield Row(**known, processes=None if processes is None else tuple(processes))


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
