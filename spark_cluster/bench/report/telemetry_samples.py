"""Telemetry of a run: read from Parquet, and thinned out for plots without losing an extreme."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.bench.run_folder import printable
from spark_cluster.errors import InvalidFile, UsageError, install_extra

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NUMBERS = (
    "sm_clock_mhz", "power_w", "temperature_c", "mem_available_mib", "swap_used_mib",
    "gpu_mem_mib", "rdma_rx_bytes_s", "rdma_tx_bytes_s", "net_rx_bytes_s", "net_tx_bytes_s",
    "running", "waiting", "kv_usage", "acceptance",
)  # fmt: skip
"""Columns that are plotted; a file may lack any of them, and any value may be null."""

BUCKETS = 300
"""Buckets of a plot, two points each: more than a plot of half a page has pixels to show."""

GAP = 10.0
"""Seconds without a sample after which a line is interrupted: samples come once a second."""

MAX_ROWS = 20_000_000
"""Eight nodes at one sample a second for a month."""

MAX_NODES = 16


@dataclass(frozen=True)
class NodeTelemetry:
    """The samples of one node, in the order of time.

    Attributes:
        seconds: since 1970, UTC.
        values: by column; not a number where a value is missing.
    """

    node: str
    seconds: Floats
    values: dict[str, Floats]


def read_telemetry(path: Path) -> list[NodeTelemetry]:
    """Read the telemetry of a run; none where there is no such file.

    Raises:
        InvalidFile: it is no Parquet, or lacks time or node.
        UsageError: pyarrow is not installed.
    """
    if not path.is_file():
        return []
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(
            f"reading telemetry needs {error.name}", hint=install_extra("bench")
        ) from None
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_ROWS:
                raise InvalidFile(f"{file.metadata.num_rows:,} rows are too many", where=str(path))
            present = set(file.schema_arrow.names)
            if missing := {"time", "node"} - present:
                raise InvalidFile(f"no column {' or '.join(sorted(missing))}", where=str(path))
            table = file.read(["time", "node", *(name for name in NUMBERS if name in present)])
        return _by_node(table)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidFile(f"not telemetry in Parquet: {reason}", where=str(path)) from None


def thin_out(node: NodeTelemetry, column: str, buckets: int = BUCKETS) -> tuple[Floats, Floats]:
    """Keep the lowest and the highest value of each bucket of time, and the gaps.

    Returns:
        Times and values, at most three for each bucket; not a number ends a line.
    """
    import numpy as np

    kept = np.isfinite(node.values[column])
    seconds, values = node.seconds[kept], node.values[column][kept]
    gaps = np.flatnonzero(np.diff(seconds) > GAP)[: buckets // 4]
    chosen = np.arange(len(seconds))
    if len(seconds) > 2 * buckets:
        span = seconds[-1] - seconds[0] or 1.0
        bucket = np.minimum((seconds - seconds[0]) / span * buckets, buckets - 1).astype(int)
        starts = np.flatnonzero(np.diff(bucket, prepend=-1))
        ends = np.append(starts[1:], len(bucket)) - 1
        by_value = np.lexsort((values, bucket))  # the lowest of a bucket comes first in it
        chosen = np.unique(np.concatenate([by_value[starts], by_value[ends], gaps, gaps + 1]))
    after_gap = np.searchsorted(chosen, gaps + 1)
    return (
        np.insert(seconds[chosen], after_gap, np.nan),
        np.insert(values[chosen], after_gap, np.nan),
    )


def from_datetime(time: datetime) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _by_node(table: pa.Table) -> list[NodeTelemetry]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    times = table["time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    seconds = times.to_numpy().astype(np.float64) / 1e6
    columns = {
        name: table[name].cast(pa.float64(), safe=False).to_numpy()
        for name in table.column_names
        if name in NUMBERS
    }
    names = table["node"].cast(pa.string())
    found = []
    for name in sorted(filter(None, pc.unique(names).to_pylist()))[:MAX_NODES]:
        rows = np.flatnonzero(pc.equal(names, name).fill_null(False).to_numpy())
        rows = rows[np.isfinite(seconds[rows])]
        rows = rows[np.argsort(seconds[rows], kind="stable")]
        values = {column: _bounded(data[rows]) for column, data in columns.items()}
        found.append(NodeTelemetry(printable(name), seconds[rows], values))
    return found


def _bounded(values: Floats) -> Floats:
    """Not a number instead of what no sensor reports, which would stretch an axis to nothing."""
    import numpy as np

    return np.where(np.abs(values) < 1e15, values, np.nan)
