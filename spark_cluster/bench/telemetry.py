"""Telemetry of nodes: the sampler's lines as rows, with rates in place of growing counters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import PlainSerializer

from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.run_folder import number
from spark_cluster.config.facts import BUSY_PERCENT, SLOW_MHZ
from spark_cluster.config.schema import Document
from spark_cluster.node.telemetry import FORMAT

KIB = 1024
MIB = 1024 * 1024

LONGEST_GAP_S = 60.0
"""Seconds between two lines of which rates are made; over longer ones they say nothing."""


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


Moment = Annotated[datetime, PlainSerializer(_utc, return_type=str)]


@dataclass(frozen=True)
class Row(Document):
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

    @property
    def is_busy(self) -> bool:
        """True under load."""
        return (self.utilisation or 0) >= BUSY_PERCENT

    @property
    def is_slow(self) -> bool:
        """True if the SM clock is low under load."""
        return self.is_busy and self.sm_clock_mhz is not None and self.sm_clock_mhz < SLOW_MHZ


@dataclass(frozen=True)
class Drafts:
    """The counters of an engine's drafter at a moment.

    Attributes:
        time: UNIX seconds.
        steps: in which tokens were drafted.
        drafted, accepted: tokens.
    """

    time: float
    steps: float
    drafted: float
    accepted: float


class LineReader:
    """Makes rows of the lines of one node's sampler.

    Args:
        node: its name.

    Attributes:
        drafts: of the last row; None where the engine has no drafter.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.drafts: Drafts | None = None
        self._before: Mapping[str, Any] = {}
        self._errors: int | None = None
        self._gpu_mem_mib: int | None = None

    def row(self, line: str) -> Row | None:
        """Return the row of a line; None for one that is not the sampler's."""
        try:
            sample = json.loads(line)
            at = datetime.fromtimestamp(float(sample["time"]), UTC)
            return self._row(at, sample) if sample["format"] == FORMAT else None
        except _NOT_A_ROW:
            return None

    def _row(self, at: datetime, sample: Mapping[str, Any]) -> Row:
        gpu, engine = _part(sample, "gpu"), _part(sample, "engine")
        processes = _processes(sample.get("processes"))
        if processes is not None:
            self._gpu_mem_mib = sum(process.used_mib or 0 for process in processes)
        reasons = gpu.get("throttle")
        counters = _counters(sample)
        row = Row(
            time=at,
            node=self.node,
            **{name: gpu.get(name) for name in _GPU},
            throttle=",".join(reasons) if isinstance(reasons, list) else None,
            **_memory(_part(sample, "memory")),
            gpu_mem_mib=self._gpu_mem_mib,
            **_rates(self._before, counters),
            running=_whole(engine.get("running")),
            waiting=_whole(engine.get("waiting")),
            kv_usage=engine.get("kv_usage"),
            rdma_errors=self._new_errors(sample.get("rdma_errors")),
            processes=processes,
            notes=tuple(map(str, sample.get("notes", ()))),
        )
        known = [found for name in _DRAFTS if (found := number(counters[name])) is not None]
        self.drafts = Drafts(at.timestamp(), *known) if len(known) == len(_DRAFTS) else None
        self._before = counters
        return row

    def _new_errors(self, sample: Any) -> int | None:
        if not isinstance(sample, dict) or not any(v is not None for v in sample.values()):
            return None
        before, self._errors = self._errors, sum(value or 0 for value in sample.values())
        return _whole(_grown(before, self._errors))


def read_lines(node: str, text: str) -> tuple[list[Row], list[Drafts]]:
    """Return what a recorded file says: FILE.1 before FILE."""
    reader, rows, drafts = LineReader(node), [], []
    for line in text.splitlines():
        if (row := reader.row(line)) is not None:
            rows.append(row)
            drafts += [reader.drafts] if reader.drafts is not None else []
    return rows, drafts


_NOT_A_ROW = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What reading a line raises that is not the sampler's."""

_GPU = ("utilisation", "sm_clock_mhz", "power_w", "temperature_c")
_DRAFTS = ("drafts", "draft_tokens", "accepted_tokens")


def _part(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = line.get(name)
    return part if isinstance(part, dict) else {}


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _memory(sample: Mapping[str, Any]) -> dict[str, int | None]:
    names = {"mem_available_mib": "available_kib", "mem_total_mib": "total_kib"}
    names["swap_used_mib"] = "swap_used_kib"
    found = {name: sample.get(source) for name, source in names.items()}
    return {name: None if value is None else value // KIB for name, value in found.items()}


def _processes(sample: Any) -> tuple[ProcessMemory, ...] | None:
    if not isinstance(sample, list):
        return None
    return tuple(ProcessMemory(pid=pid, name=name, used_mib=mib) for pid, name, mib in sample)


def _counters(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clock and all that only grows; what becomes a rate by the rate's name."""
    engine, network = _part(sample, "engine"), _part(sample, "network")
    hcas = _part(sample, "rdma").values()
    interfaces = {hca.get("interface") for hca in hcas}
    link = [network[name] for name in interfaces if name in network]
    moved = {
        f"{name}_{way}_bytes_s": _total(values)
        for n, way in enumerate(("rx", "tx"))
        for name, values in (
            ("rdma", [hca.get(way) for hca in hcas]),
            ("net", [counted[n] for counted in network.values()]),
            ("link", [counted[n] for counted in link]),
        )
    }
    return {
        "clock": float(sample.get("clock", 0)),
        **moved,
        "prompt_tps": engine.get("prompt_tokens"),
        "generation_tps": engine.get("generation_tokens"),
        "swap_bytes_s": _part(sample, "memory").get("swapped_bytes"),
        "preemptions": engine.get("preemptions"),
        **{name: engine.get(name) for name in _DRAFTS},
    }


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
