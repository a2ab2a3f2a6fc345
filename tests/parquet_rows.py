"""The rows of a Parquet file of telemetry, read as others read it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet

from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.telemetry import COLUMNS, TelemetryRow, processes_path


def read_parquet(path: Path) -> Iterator[TelemetryRow]:
    """Yield the rows, with the processes' memory from the file next to it."""
    held: dict[tuple[Any, str], list[ProcessMemory]] = {}
    companion = processes_path(path)
    if companion.exists():
        for data in pyarrow.parquet.read_table(companion).to_pylist():
            process = ProcessMemory(**{name: data[name] for name in ("pid", "name", "used_mib")})
            held.setdefault((data["time"], data["node"]), []).append(process)
    for data in pyarrow.parquet.read_table(path).to_pylist():
        processes = held.get((data["time"], data["node"]))
        known = {name: data.get(name) for name in COLUMNS}
        yield TelemetryRow(**known, processes=None if processes is None else tuple(processes))
