"""Telemetry of a run on the laptop: the samplers' lines and a Parquet file of each step, and the
file of the whole run that is put together from these."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from spark_cluster.bench.run_folder import TELEMETRY
from spark_cluster.bench.sampling import rows_of
from spark_cluster.bench.telemetry import Row
from spark_cluster.bench.telemetry_file import need_pyarrow, processes_path, write_parquet
from spark_cluster.node.telemetry import FILE_LIMIT

LINES = "telemetry-{}.jsonl.gz"
"""In the raw folder of a step, for each node: the sampler's own lines."""

RAW = "raw"


def texts(step: Path) -> dict[str, str]:
    """Return the samplers' lines in the folder of a step, by node."""
    found = {}
    for path in _lines(step):
        node = path.name.removeprefix("telemetry-").removesuffix(".jsonl.gz")
        try:
            with gzip.open(path) as packed:  # foreign input: no more than the sampler keeps
                found[node] = packed.read(2 * FILE_LIMIT).decode("utf-8", "replace")
        except (OSError, EOFError, zlib.error):
            continue  # cut while it was written; the next fetch brings it whole
    return found


def write_part(step: Path, rows: Iterable[Row]) -> None:
    """Write the Parquet file of a step; nothing without a row."""
    found = sorted(rows, key=lambda row: (row.time, row.node))
    if not found:
        return
    new = step / f".new-{TELEMETRY}"
    write_parquet(new, found)
    _publish(new, step / TELEMETRY)


def merge(run: Path) -> None:
    """Write the telemetry of a run from those of its steps; nothing where there is none.

    The lines of a step are read only where its file is missing or older than they are.
    """
    parts = [part for step in _steps(run) if (part := _part(step)) is not None]
    if not parts:
        return
    new = run / f".new-{TELEMETRY}"
    _join(parts, new, ("time", "node"))
    _join([processes_path(part) for part in parts], processes_path(new), ("time", "node", "pid"))
    _publish(new, run / TELEMETRY)


def _lines(step: Path) -> list[Path]:
    return sorted(step.glob(LINES.format("*")))


def _steps(run: Path) -> Iterator[Path]:
    raw = run / RAW
    yield from sorted(path for path in raw.iterdir() if path.is_dir()) if raw.is_dir() else ()


def _part(step: Path) -> Path | None:
    """Return the Parquet file of a step, written if need be; None where it has no telemetry."""
    part, lines = step / TELEMETRY, _lines(step)
    newest = max((path.stat().st_mtime_ns for path in lines), default=0)
    if lines and (not _is_whole(part) or part.stat().st_mtime_ns < newest):
        write_part(step, rows_of(texts(step)))
    return part if _is_whole(part) else None


def _is_whole(part: Path) -> bool:
    """Return whether a step's files can be read: a power cut of the laptop may leave empty ones."""
    arrow = need_pyarrow()
    import pyarrow.parquet

    try:
        for path in (part, processes_path(part)):
            pyarrow.parquet.read_metadata(path)
    except (OSError, arrow.ArrowInvalid):
        return False
    return True


def _join(parts: Sequence[Path], path: Path, order: Sequence[str]) -> None:
    arrow = need_pyarrow()
    import pyarrow.parquet

    tables = [pyarrow.parquet.read_table(part) for part in parts if part.exists()]
    whole = arrow.concat_tables(tables, promote_options="default")
    ordered = whole.sort_by([(name, "ascending") for name in order])
    pyarrow.parquet.write_table(ordered, path, compression="zstd")


def _publish(new: Path, path: Path) -> None:
    """Give both files their names: they are there whole, or as they were before."""
    processes_path(new).replace(processes_path(path))
    new.replace(path)
