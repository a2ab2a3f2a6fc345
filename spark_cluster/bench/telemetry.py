"""Telemetry of nodes: the sampler's lines as rows, rows as files, and what they say of a cell.

Rows have rates in place of growing counters.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from statistics import median_high
from typing import Annotated, Any

from pydantic import PlainSerializer, TypeAdapter

from spark_cluster.bench.record import CellResult, Metric, MetricName, ProcessMemory, number
from spark_cluster.config.facts import BUSY_PERCENT, SLOW_MHZ
from spark_cluster.config.schema import Document, Hidden
from spark_cluster.errors import UsageError, install_extra
from spark_cluster.models.naming import table
from spark_cluster.node.output import gigabytes
from spark_cluster.node.replies import at
from spark_cluster.node.telemetry import FORMAT

KIB = 1024
MIB = 1024 * 1024

LONGEST_GAP_S = 60.0
"""Seconds between two lines of which rates are made; over longer ones they say nothing."""


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


Moment = Annotated[datetime, PlainSerializer(_utc, return_type=str)]


@dataclass(frozen=True)
class TelemetryRow(Document):
    """A node at one moment; what is not known is None.

    Attributes:
        time: UTC, by the node's clock.
        utilisation: of the GPU, percent.
        throttle: reasons for which the clocks are limited, with commas between; empty for none.
        gpu_mem_mib: sum over all processes, of the last reading.
        rdma_rx_bytes_s, rdma_tx_bytes_s: over the HCAs, bytes a second.
        net_rx_bytes_s, net_tx_bytes_s: over all network interfaces, without what RDMA moves.
        link_rx_bytes_s, link_tx_bytes_s: over the interfaces of the HCAs, without what RDMA moves.
        rdma_errors: of the HCAs since the line before it that had them.
        swap_bytes_s: moved to and from swap.
        running, waiting: requests in the engine.
        kv_usage, acceptance: shares (0-1); acceptance is that of draft tokens since the last line.
        prompt_tps, generation_tps: tokens a second.
        preemptions: since the last line.
        processes: GPU memory of each; None where it was not asked at this moment.
        notes: why something is not known.
        drafts: steps in which tokens were drafted, drafted and accepted tokens since the last line
            that had them; not in files.
    """

    time: Moment
    node: str
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: str | None = None
    mem_available_mib: int | None = None
    mem_total_mib: int | None = None
    swap_used_mib: int | None = None
    gpu_mem_mib: int | None = None
    rdma_rx_bytes_s: float | None = None
    rdma_tx_bytes_s: float | None = None
    net_rx_bytes_s: float | None = None
    net_tx_bytes_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    acceptance: float | None = None
    prompt_tps: float | None = None
    generation_tps: float | None = None
    utilisation: float | None = None
    link_rx_bytes_s: float | None = None
    link_tx_bytes_s: float | None = None
    rdma_errors: int | None = None
    swap_bytes_s: float | None = None
    preemptions: int | None = None
    processes: tuple[ProcessMemory, ...] | None = None
    notes: tuple[str, ...] = ()
    drafts: Hidden[tuple[float, ...] | None] = None

    @property
    def is_busy(self) -> bool:
        """True under load."""
        return (self.utilisation or 0) >= BUSY_PERCENT

    @property
    def is_slow(self) -> bool:
        """True if the SM clock is low under load."""
        return self.is_busy and self.sm_clock_mhz is not None and self.sm_clock_mhz < SLOW_MHZ


class LineReader:
    """Makes rows of the lines of one node's sampler.

    Args:
        node: its name.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self._drafts: list[float] = []
        self._before: Mapping[str, Any] = {}
        self._errors: int | None = None
        self._gpu_mem_mib: int | None = None

    def row(self, line: str) -> TelemetryRow | None:
        """Return the row of a line; None for one that is not the sampler's."""
        try:
            sample = json.loads(line)
            time = datetime.fromtimestamp(float(sample["time"]), UTC)
            return self._row(time, sample) if sample["format"] == FORMAT else None
        except _NOT_A_ROW:
            return None

    def _row(self, time: datetime, sample: Mapping[str, Any]) -> TelemetryRow:
        processes = _processes(sample.get("processes"))
        if processes is not None:
            self._gpu_mem_mib = sum(process.used_mib or 0 for process in processes)
        reasons = at(sample, "gpu", "throttle")
        counters, kib = _counters(sample), _figures(sample, "kib")
        row = TelemetryRow(
            time=time,
            node=self.node,
            **_figures(sample, "values"),
            **{name: _whole(value) for name, value in _figures(sample, "counts").items()},
            **{name: None if value is None else int(value) // KIB for name, value in kib.items()},
            throttle=",".join(reasons) if isinstance(reasons, list) else None,
            gpu_mem_mib=self._gpu_mem_mib,
            **_rates(self._before, counters),
            rdma_errors=self._new_errors(sample.get("rdma_errors")),
            processes=processes,
            notes=tuple(map(str, sample.get("notes", ()))),
            drafts=self._new_drafts(counters),
        )
        self._before = counters
        return row

    def _new_errors(self, sample: Any) -> int | None:
        if not isinstance(sample, dict) or not any(v is not None for v in sample.values()):
            return None
        before, self._errors = self._errors, sum(value or 0 for value in sample.values())
        return _whole(_grown(before, self._errors))

    def _new_drafts(self, counters: Mapping[str, Any]) -> tuple[float, ...] | None:
        """Return by how much the counters of drafts have grown; None where the engine has begun
        again, or has no drafter."""
        now = [found for name in _DRAFTS if (found := counters[name]) is not None]
        if len(now) < len(_DRAFTS):
            return None
        before, self._drafts = self._drafts, now
        grown = tuple(new - old for old, new in zip(before, now, strict=False))
        return grown if grown and min(grown) >= 0 else None


def read_lines(node: str, text: str) -> list[TelemetryRow]:
    """Return the rows of a recorded file: FILE.1 before FILE."""
    reader = LineReader(node)
    return [row for line in text.splitlines() if (row := reader.row(line)) is not None]


_NOT_A_ROW = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What reading a line raises that is not the sampler's."""

_DRAFTS = ("drafts", "draft_tokens", "accepted_tokens")


_SOURCES: dict[str, dict[str, list[str]]] = table("telemetry", "bench")


def _figures(sample: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the figures of a kind in a line; None for what is not known."""
    return {name: number(at(sample, *path)) for name, path in _SOURCES[kind].items()}


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _processes(sample: Any) -> tuple[ProcessMemory, ...] | None:
    if not isinstance(sample, list):
        return None
    return tuple(ProcessMemory(pid=pid, name=name, used_mib=mib) for pid, name, mib in sample)


def _counters(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clock and all that only grows; what becomes a rate by the rate's name."""
    network = at(sample, "network") or {}
    hcas = (at(sample, "rdma") or {}).values()
    link = {hca.get("interface") for hca in hcas} & network.keys()
    moved = {
        f"{name}_{way}_bytes_s": _total(values)
        for n, way in enumerate(("rx", "tx"))
        for name, values in (
            ("rdma", [hca.get(way) for hca in hcas]),
            ("net", [counted[n] for counted in network.values()]),
            ("link", [network[interface][n] for interface in link]),
        )
    }
    found = _figures(sample, "counters")
    return {**found, "clock": found["clock"] or 0.0, **moved}


def _rates(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return rates a second, and what else has grown between two lines.

    All are None over a reboot, by the monotonic clock, or a long gap.
    """
    seconds = now["clock"] - before["clock"] if before else 0.0
    is_known = 0 < seconds <= LONGEST_GAP_S
    grown = {name: _grown(before[name], now[name]) if is_known else None for name in now}
    drafted, accepted = grown["draft_tokens"], grown["accepted_tokens"]
    return {
        **{
            name: None if by is None else by / seconds
            for name, by in grown.items()
            if name.endswith(("_tps", "_bytes_s"))
        },
        "acceptance": accepted / drafted if drafted and accepted is not None else None,
        "preemptions": _whole(grown["preemptions"]),
    }


def _grown(before: float | None, now: float | None) -> float | None:
    """Return by how much a counter has grown; None where it began again."""
    return None if before is None or now is None or now < before else now - before


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# -- files: Parquet with a row a second a node, or JSON lines as they come -------------------------

KINDS = {"Moment": "timestamp", "str": "string", "int": "int32", "float": "float32"}
"""Of the file of rows: a field's type, and pyarrow's name for it; rates of bytes are float64."""

COLUMNS = {
    field.name: "float64"
    if field.name.endswith("_bytes_s")
    else KINDS[str(field.type).partition(" ")[0]]
    for field in fields(TelemetryRow)
    if field.name not in ("processes", "notes", "drafts")
}
"""Of the file of rows: names as in `TelemetryRow`, and types as pyarrow calls them."""

PROCESS_COLUMNS = {
    "time": "timestamp", "node": "string", "pid": "int32", "name": "string", "used_mib": "int32",
}  # fmt: skip
"""Of the file of processes: a row for each process at each reading."""

ROWS = TypeAdapter(TelemetryRow)

GROUP = 600
"""Rows that are written at once."""


def processes_path(path: Path) -> Path:
    """Return the file of the processes' memory next to a file of rows.

    >>> processes_path(Path("run/telemetry.parquet")).name
    'telemetry-processes.parquet'
    """
    return path.with_name(f"{path.stem}-processes{path.suffix}")


class JsonLinesWriter:
    """A file with a JSON line a row, written as it comes.

    Args:
        parquet: a Parquet file that is made of the lines at the end, which are removed then. One
            without its end cannot be read; the lines can, whenever the program is killed.

    Raises:
        OSError: the lines cannot be written.
    """

    def __init__(self, path: Path, parquet: Path | None = None) -> None:
        self._path, self._parquet = path, parquet
        self._out = path.open("x", encoding="utf-8")

    def write(self, row: TelemetryRow) -> None:
        """Add a row."""
        self._out.write(json.dumps(row.to_dict()) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Close the file, and make the Parquet file."""
        self._out.close()
        if self._parquet is not None:
            with self._path.open(encoding="utf-8") as data:
                write_parquet(self._parquet, filter(None, map(row_of_line, data)))
            self._path.unlink()


def lines_path(path: Path) -> Path:
    """Return the file of lines that a Parquet file is made of at the end.

    >>> lines_path(Path("run.parquet")).name
    'run.parquet.jsonl'
    """
    return path.with_name(f"{path.name}.jsonl")


def row_of_line(line: str) -> TelemetryRow | None:
    """Return the row that `JsonLinesWriter` wrote; None for a line that was cut."""
    try:
        return ROWS.validate_json(line)
    except ValueError:
        return None


def writer(path: Path) -> JsonLinesWriter:
    """Return what writes a file: Parquet for `.parquet`, otherwise JSON lines.

    Raises:
        UsageError: the file is there already, its folder is not, or pyarrow is wanted and not
            installed.
        OSError: it cannot be written.
    """
    if path.exists():
        raise UsageError(f"{path} exists", hint="name a new file, or remove it first")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}", hint="make it first")
    if path.suffix != ".parquet":
        return JsonLinesWriter(path)
    need_pyarrow()
    lines = lines_path(path)
    if lines.exists():
        raise UsageError(
            f"{lines} exists, of a recording that was killed",
            hint="it has all samples as JSON lines; name a new file, or move it away first",
        )
    return JsonLinesWriter(lines, parquet=path)


def write_parquet(path: Path, rows: Iterable[TelemetryRow]) -> None:
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


# -- what telemetry says of a cell: reasons against it, and the acceptance of drafted tokens -------
#
# The counters of drafts are in the sampler's lines, once a second (see node/telemetry.py). Of
# a cell what counts is by how much they grew between its begin and its end, with its warm-up.
# Where an engine was started again in between, what it counted before is left out.

LEAST_S = 3.0
"""Seconds of a state that are worth a word: clocks need a moment to rise."""

SWAPPED_MIB = 64
"""MiB moved to or from swap in a stretch from which it is flagged. Our choice: less is pages that
were idle before."""

RDMA_SHARE = 0.9
"""Share of the link's bytes that RDMA must move to prove RoCE. Our choice: Ray's control and the
first meeting of the ranks go over TCP, a fall-back of NCCL to sockets moves all of it so."""

LINK_BYTES = MIB
"""Bytes over the link below which it carried no tensor parallelism at all."""

MISSING_SHARE = 0.1
"""Share of a stretch without rows from which it is flagged. Our choice."""

SETTLED = timedelta(seconds=1.5)
"""Time after a cell in which a line may still say what the counters were before its end. The
load generator of the next cell takes longer to start."""


@dataclass(frozen=True)
class Stretch:
    """The rows of one node between two moments, each with the seconds that it stands for."""

    node: str
    rows: tuple[tuple[TelemetryRow, float], ...]
    seconds: float


def with_telemetry(
    cells: Sequence[CellResult], rows: Sequence[TelemetryRow], nodes: Sequence[str], tp: int
) -> list[CellResult]:
    """Return results with what telemetry says of them.

    The acceptance of drafts that the load generator told stays.

    Args:
        rows: of these nodes and perhaps others, in any order.
        nodes: those of the servers that were measured.
        tp: nodes of one of them.
    """
    found = []
    for cell in cells:
        changed: dict[str, object] = {}
        if cell.started is not None and cell.finished is not None:
            metrics = _acceptance(cell, rows, cell.started, cell.finished) | cell.metrics
            more = attention(rows, cell.started, cell.finished, nodes, tp) if rows and nodes else ()
            changed = {"metrics": metrics, "attention": (*cell.attention, *more)}
        found.append(cell.model_copy(update=changed))
    return found


def _acceptance(
    cell: CellResult, rows: Sequence[TelemetryRow], started: datetime, finished: datetime
) -> dict[MetricName, Metric]:
    if cell.status != "ok" or cell.key.context_prefill or "acceptance" in cell.metrics:
        return {}
    end = finished + SETTLED
    grown = [row.drafts for row in rows if row.drafts is not None and started < row.time <= end]
    steps, drafted, accepted = map(sum, zip(*grown, strict=True)) if grown else (0, 0, 0)
    if not (steps > 0 and 0 <= accepted <= drafted and drafted > 0):
        return {}
    return {
        "acceptance": Metric(mean=accepted / drafted),
        # Each step also gives the token that the model itself makes.
        "acceptance_length": Metric(mean=1 + accepted / steps),
    }


def attention(
    rows: Iterable[TelemetryRow], start: datetime, end: datetime, nodes: Sequence[str], tp: int = 1
) -> tuple[str, ...]:
    """Return what to be careful about in a measurement, as sentences for `CellResult.attention`.

    Args:
        rows: of these nodes and perhaps others, in any order.
        start, end: of the measurement, UTC.
        nodes: those that served it.
        tp: nodes of a server; from 2 on RoCE has to be proven.
    """
    known = tuple(rows)
    found = [stretch(known, node, start, end) for node in nodes]
    reasons = [text for one in found for text in _of_node(one)]
    return (*reasons, *(_roce(found) if tp > 1 else ()))


def stretch(rows: Iterable[TelemetryRow], node: str, start: datetime, end: datetime) -> Stretch:
    """Return the rows of a node in a stretch of time, each until the next one."""
    inside = sorted(
        (r for r in rows if r.node == node and start <= r.time <= end), key=lambda row: row.time
    )
    gaps = [(b.time - a.time).total_seconds() for a, b in pairwise(inside)]
    usual = median_high(gaps) if gaps else 1.0  # seconds: the interval at which the sampler ran
    ends = [*(row.time for row in inside[1:]), end]
    lasting = [
        (row, min((until - row.time).total_seconds(), 2 * usual))
        for row, until in zip(inside, ends, strict=False)
    ]
    return Stretch(node, tuple(lasting), (end - start).total_seconds())


def _of_node(found: Stretch) -> Iterable[str]:
    if not found.rows:
        yield f"{found.node}: no telemetry of this time"
        return
    known = sum(seconds for _, seconds in found.rows)
    if found.seconds - known > max(LEAST_S, MISSING_SHARE * found.seconds):
        yield (
            f"{found.node}: no telemetry for {found.seconds - known:.0f} of {found.seconds:.0f} s"
        )
    yield from _clock(found)
    yield from _throttle(found)
    yield from _swap(found)


def _clock(found: Stretch) -> Iterable[str]:
    slow = [(row, seconds) for row, seconds in found.rows if row.is_slow]
    seconds = sum(s for _, s in slow)
    if seconds >= LEAST_S:
        lowest = min((row for row, _ in slow), key=lambda row: row.sm_clock_mhz or 0)
        at = f"{lowest.sm_clock_mhz:.0f} MHz"
        at += f" at {lowest.power_w:.0f} W" if lowest.power_w is not None else ""
        yield (
            f"{found.node}: SM clock under {SLOW_MHZ / 1000:g} GHz for {seconds:.0f} s under load "
            f"(lowest {at})"
        )


def _throttle(found: Stretch) -> Iterable[str]:
    held: dict[str, float] = {}
    for row, seconds in found.rows:
        for reason in filter(None, (row.throttle or "").split(",") if row.is_busy else ()):
            held[reason] = held.get(reason, 0.0) + seconds
    for reason, seconds in held.items():
        if seconds >= LEAST_S:
            yield f"{found.node}: clocks limited for {seconds:.0f} s under load ({reason})"


def _swap(found: Stretch) -> Iterable[str]:
    moved = sum((row.swap_bytes_s or 0.0) * seconds for row, seconds in found.rows) / MIB
    if moved >= SWAPPED_MIB:
        yield f"{found.node}: {moved:.0f} MiB were moved to and from swap"


def _roce(found: Sequence[Stretch]) -> Iterable[str]:
    rows = [(row, seconds) for one in found for row, seconds in one.rows]
    by_rdma = _bytes(rows, "rdma_rx_bytes_s", "rdma_tx_bytes_s")
    by_tcp = _bytes(rows, "link_rx_bytes_s", "link_tx_bytes_s") or 0.0
    if by_rdma is None:
        yield "RoCE is not proven: the nodes have no RDMA port counters"
    elif by_rdma + by_tcp < LINK_BYTES:
        yield f"RoCE is not proven: only {gigabytes(by_rdma + by_tcp)} went over the link"
    elif by_rdma < RDMA_SHARE * (by_rdma + by_tcp):
        yield (
            f"RoCE is not proven: {gigabytes(by_rdma)} went over the HCAs by RDMA, "
            f"{gigabytes(by_tcp)} over their interfaces by TCP/IP"
        )
    errors = sum(row.rdma_errors or 0 for row, _ in rows)
    if errors:
        yield f"the HCAs counted {errors} errors and retransmissions"


def _bytes(rows: Sequence[tuple[TelemetryRow, float]], *names: str) -> float | None:
    """Return the bytes that these rates amount to; None when none of them is known."""
    moved = [(getattr(row, name), seconds) for row, seconds in rows for name in names]
    return _total(None if rate is None else rate * seconds for rate, seconds in moved)
