"""The holders of GPU memory on each node, asked on the host, next to the node's total.

What to do about a program that is not ours, how Ollama gives its memory back, and the memory of a
recorded run over time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NotRequired, TypeVar

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.folders import state_folder
from spark_cluster.config.schema import Document, Hidden, printed
from spark_cluster.config.topology import Node
from spark_cluster.engine.memory_phases import PHASES, MemoryPhases
from spark_cluster.engine.names import TITLE
from spark_cluster.errors import Failed, SparkClusterError, UsageError, naming
from spark_cluster.node import replies
from spark_cluster.node.values import looks
from spark_cluster.runner.events import Bus, Event, MemoryHeld, MemoryPlanned, RunStarted
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session, ask_all

T = TypeVar("T")

FREE_WITHIN_S = 30.0
"""Seconds that the memory of ended processes may take to come back."""

UNDER_LOAD_S = 5.0
"""Seconds between two readings while a server is under load."""

RETURNED = 0.9
"""Share of the memory of ended processes that MemAvailable must show again before it counts as
back; other programs of the node take and return memory meanwhile."""

NOTICED_MIB = 256
"""Change of MemAvailable that makes a reading of the same processes a new one."""

Pids = Mapping[str, Collection[int]]
"""Node to ids of processes."""


@dataclass(frozen=True)
class NodeVram(Document):
    """The reading of one node; memory in MiB.

    Attributes:
        processes: what `nvidia-smi --query-compute-apps` lists.
    """

    name: str
    processes: tuple[GpuProcess, ...]
    mem_total_mib: int
    mem_available_mib: int

    @printed
    def used_mib(self) -> int:
        """Sum over the processes whose figure is known."""
        return sum(p.used_mib or 0 for p in self.processes)

    def serving(self, models: Mapping[int, str]) -> NodeVram:
        """Return it with the model that each process serves, by process id."""
        named = (replace(p, model=models.get(p.pid, "")) for p in self.processes)
        return replace(self, processes=tuple(named))


def sample(sessions: Mapping[str, Session]) -> list[NodeVram]:
    """Take one reading of every node, all asked at once.

    Raises:
        Failed: nvidia-smi does not answer on a node; never taken for "nothing is held".
    """
    found = []
    for name, answer in ask_all(sessions, "gather", **fact_gathering.MEMORY).items():
        processes, memory = fact_gathering.memory(answer)
        if processes is None:
            done = answer["commands"]["apps"]
            hangs = answer.get("late", {}).get("apps")
            printed = (
                "no such command" if done is None else (done["stdout"] + done["stderr"]).strip()
            )
            raise Failed(
                f"nvidia-smi does not answer: {hangs or printed or 'it printed nothing'}",
                where=name,
                hint="the driver hangs: `journalctl -k` there, and a reboot"
                if hangs
                else "a driver that was updated needs a reboot",
            )
        total, available = memory.total_kib // 1024, memory.available_kib // 1024
        found.append(NodeVram(name, processes, total, available))
    return found


def record(bus: Bus, phase: str, readings: Iterable[NodeVram]) -> None:
    """Put readings into the run's record.

    Args:
        phase: of the run, see `MemoryHeld`.
    """
    for one in readings:
        bus.emit(MemoryHeld(one.name, phase, one.used_mib, one.mem_available_mib))


class Course:
    """The readings of one phase while it lasts, as the run's record has them.

    Each that differs from the one before is recorded at once, for a start may fail at any moment.

    Args:
        phase: of the run, see `MemoryHeld`.
    """

    def __init__(self, bus: Bus, phase: str) -> None:
        self._bus, self._phase = bus, phase
        self._last: dict[str, NodeVram] = {}

    def take(self, readings: Iterable[NodeVram]) -> None:
        """Record what is new in a reading of the nodes."""
        new = [one for one in readings if _differs(self._last.get(one.name), one)]
        self._last.update({one.name: one for one in new})
        record(self._bus, self._phase, new)


def _differs(before: NodeVram | None, now: NodeVram) -> bool:
    if before is None or before.used_mib != now.used_mib:
        return True
    return abs(before.mem_available_mib - now.mem_available_mib) >= NOTICED_MIB


def record_plan(bus: Bus, nodes: Iterable[Node], loading_gib: float, ready_gib: float) -> None:
    """Put the plan's prediction for each node that is to serve into the run's record."""
    loading, ready = round(loading_gib * 1024), round(ready_gib * 1024)
    for node in nodes:
        bus.emit(MemoryPlanned(node.name, loading, ready))


def missing_mib(before: NodeVram, now: NodeVram) -> int:
    """Return how much memory of ended processes MemAvailable does not show yet; 0 when it does."""
    left = {process.pid for process in now.processes}
    ended = sum(process.used_mib or 0 for process in before.processes if process.pid not in left)
    expected = min(before.mem_available_mib + int(ended * RETURNED), before.mem_total_mib)
    return max(0, expected - now.mem_available_mib) if ended else 0


def holding(reading: NodeVram, ignored: Pids) -> list[GpuProcess]:
    """Return the processes that hold memory, without those that are ignored."""
    return [p for p in reading.processes if p.pid not in ignored.get(reading.name, ())]


def until_free(
    sessions: Mapping[str, Session],
    before: Iterable[NodeVram] = (),
    ignored: Pids | None = None,
) -> list[NodeVram]:
    """Wait for the memory of ended processes to come back, at most `FREE_WITHIN_S`.

    Args:
        before: readings from before they ended; with them MemAvailable must show it, too.
        ignored: processes that are not waited for.

    Returns:
        The last reading; processes in it hold memory still.
    """
    known, others = {reading.name: reading for reading in before}, ignored or {}
    for _ in looks(FREE_WITHIN_S, 0.5):
        now = sample(sessions)
        held = any(holding(reading, others) for reading in now)
        missing = any(missing_mib(known.get(reading.name, reading), reading) for reading in now)
        if not (held or missing):
            break
    return now


def peak_while(
    play: Play,
    job: Callable[[], T],
    every_s: float = UNDER_LOAD_S,
    on_reading: Callable[[list[NodeVram]], None] = lambda _readings: None,
) -> tuple[T, list[NodeVram]]:
    """Return what a job returns, and the largest VRAM of each node while it runs.

    A fault in reading is told, and does not end the job.

    Args:
        every_s: seconds between two readings.
        on_reading: is given each reading.
    """
    ended = threading.Event()

    def done() -> T:
        try:
            return job()
        finally:
            ended.set()

    def read() -> list[NodeVram]:
        found: list[NodeVram] = []
        try:
            while not ended.wait(every_s):
                now = sample(play.sessions)
                on_reading(now)
                found = peak(found, now)
        except SparkClusterError as error:
            play.note(f"no further readings of GPU memory: {error.message}", warning=True)
        return found

    found, readings = play.together(done, read)
    return found, readings


def peak(before: Iterable[NodeVram], now: Iterable[NodeVram]) -> list[NodeVram]:
    """Node by node, the reading with the larger sum."""
    known = {reading.name: reading for reading in before}
    return [
        max(known.get(reading.name, reading), reading, key=lambda r: r.used_mib) for reading in now
    ]


class MemoryReadings(TypedDict):
    """Readings of all nodes: now and before; the largest of a load, and under a short load."""

    nodes: list[NodeVram]
    before: list[NodeVram]
    peak: NotRequired[list[NodeVram]]
    under_load: NotRequired[list[NodeVram]]


@dataclass(frozen=True)
class Stopped(Document):
    """The memory held before and after a stop."""

    before: Hidden[list[NodeVram]]
    now: Hidden[list[NodeVram]]

    @printed
    def vram(self) -> MemoryReadings:
        """Both, as `down --json` prints them."""
        return {"nodes": self.now, "before": self.before}


OLLAMA = "http://127.0.0.1:11434"
"""Where Ollama listens unless OLLAMA_HOST says otherwise. Source: ollama-api."""

ASK_S, UNLOAD_S = 5.0, 60.0
"""Seconds for the list of loaded models, and to unload one."""

MOST_MODELS = 64


@dataclass(frozen=True)
class Loaded:
    """A model that another program has loaded.

    Attributes:
        size_mib: memory that it takes, as that program says; None where it does not.
    """

    name: str
    size_mib: int | None = None

    def __str__(self) -> str:
        return self.name if self.size_mib is None else f"{self.name} ({self.size_mib} MiB)"


def ollama_models(session: Session, where: str) -> list[Loaded]:
    """Return the models that Ollama on a node has loaded; none where no Ollama answers.

    Raises:
        Failed: something else than Ollama answers at its port.
    """
    answer = session.http(f"{OLLAMA}/api/ps", timeout=ASK_S)
    if answer.status == 0:
        return []
    entries = replies.at(replies.decoded(answer.body), "models")
    if answer.status != 200 or not isinstance(entries, list):
        raise Failed(
            f"{OLLAMA}/api/ps answers {replies.short(answer.body)!r} (status {answer.status}), "
            "expected the list of Ollama's loaded models",
            where=where,
            hint="another program uses Ollama's port; `spark-cluster vram` names the holders",
        )
    found = []
    for entry in entries[:MOST_MODELS]:
        name, size = replies.text_of(replies.at(entry, "name")), replies.at(entry, "size")
        if name:
            known = isinstance(size, int) and size >= 0
            found.append(Loaded(name, size // 2**20 if known else None))
    return found


def unload_ollama(session: Session, where: str, models: Iterable[Loaded]) -> None:
    """Unload models, as `ollama stop` does: a request without a prompt and keep_alive 0.

    Raises:
        Failed: Ollama refuses it.
    """
    for model in models:
        body = json.dumps({"model": model.name, "keep_alive": 0, "stream": False})
        headers = {"Content-Type": "application/json"}
        answer = session.http(
            f"{OLLAMA}/api/generate", method="POST", headers=headers, body=body, timeout=UNLOAD_S
        )
        if answer.status != 200:
            refusal = replies.text_of(replies.at(replies.decoded(answer.body), "error"))
            raise Failed(
                f"Ollama does not unload {model.name} (status {answer.status}): "
                f"{replies.short(refusal or answer.reason or answer.body)}",
                where=where,
                hint=f"`ollama stop {model.name}` on the node",
            )


def held_by(readings: Iterable[NodeVram], ignored: Pids) -> list[tuple[str, GpuProcess]]:
    """Return node and process of all that still holds memory."""
    return [(r.name, process) for r in readings for process in holding(r, ignored)]


def described(held: Iterable[tuple[str, GpuProcess]]) -> str:
    """Return them as text: program, process id, MiB, node."""
    return "; ".join(
        f"{p.name} (pid {p.pid}, {'?' if p.used_mib is None else p.used_mib} MiB) on {node}"
        for node, p in held
    )


def advice(held: Iterable[tuple[str, GpuProcess]]) -> str:
    """Return what to do about what holds memory."""
    found, steps = list(held), []
    others = [one for one in found if "ollama" not in one[1].name.lower()]
    if len(others) < len(found):
        steps.append("--unload ollama unloads Ollama's models")
    orphans = [(node, process) for node, process in others if TITLE.match(process.name)]
    for node, process in orphans:
        steps.append(f"`sudo kill {process.pid}` on {node} ends an orphaned engine process")
    if len(others) > len(orphans):
        steps.append("what spark-cluster did not start is ended on its node")
    return "; ".join(steps)


# The GPU memory of a recorded run over time: read back from the events in its record.

WANTED: dict[str, TypeAdapter[Event]] = {
    kind.__name__: TypeAdapter(kind) for kind in (RunStarted, MemoryHeld, MemoryPlanned)
}


@dataclass(frozen=True)
class MemoryRecord:
    """The readings of a run, in the order of time.

    Attributes:
        run: its id.
        command: that was given.
        readings: one a node and moment.
        planned: what was predicted.
    """

    run: str
    command: str
    readings: tuple[MemoryHeld, ...]
    planned: tuple[MemoryPlanned, ...]

    @property
    def nodes(self) -> list[str]:
        """The nodes, in the order of their first reading."""
        return list(dict.fromkeys(reading.node for reading in self.readings))

    def phases(self) -> MemoryPhases:
        """Return the memory of each node by phase."""
        found = MemoryPhases()
        for event in (*self.planned, *self.readings):
            found.take(event)
        return found

    def spans(self) -> list[tuple[str, float]]:
        """Return each phase with the seconds since 1970 at which it begins, in their order."""
        found: list[tuple[str, float]] = []
        for reading in self.readings:
            if not found or found[-1][0] != reading.phase:
                found.append((reading.phase, reading.at))
        return found


def records_folder() -> Path:
    """Return the folder of the runs' records on this machine."""
    return state_folder() / "runs"


def of_run(run: str | None) -> MemoryRecord:
    """Return the memory of a run that was recorded on this machine.

    Args:
        run: its id; None for the last one that read memory.

    Raises:
        UsageError: there is no such record, or it has no reading of memory.
        Failed: it cannot be read.
    """
    if run is not None:
        path = path_of(run)
        if not path.is_file():
            raise UsageError(
                f"this machine has no record of run {run}",
                where=str(path.parent),
                hint="records stay where the run was made, the last 200; `spark-cluster history` "
                "lists the runs",
            )
        found = read(path)
        if not found.readings:
            raise UsageError(f"run {run} read no GPU memory", where=str(path))
        return found
    for path in sorted(records_folder().glob("*.jsonl"), reverse=True):
        if (found := read(path)).readings:
            return found
    raise UsageError(
        "no run on this machine has read GPU memory yet",
        where=str(records_folder()),
        hint="`up`, `swap` and `down` do",
    )


def path_of(run: str) -> Path:
    """Return the file of a run's record.

    Raises:
        UsageError: the text is no run's id.
    """
    if not run or not all(c.isascii() and (c.isalnum() or c == "-") for c in run):
        raise UsageError(
            f"{run!r} is not the id of a run", hint="`spark-cluster history` lists them"
        )
    return records_folder() / f"{run}.jsonl"


def plot_path(run: str) -> Path:
    """Return where the plot of a run's memory is kept: next to its record.

    Raises:
        UsageError: the text is no run's id.
    """
    return path_of(run).with_suffix(".svg")


def read(path: Path) -> MemoryRecord:
    """Read a record; lines that are torn or of another version are left out.

    Raises:
        Failed: it cannot be read.
    """
    with naming(Failed, "the run record cannot be read", where=str(path)):
        text = path.read_text(errors="replace")
    found = [event for line in text.splitlines() if (event := _event(line)) is not None]
    begun = [event.command for event in found if isinstance(event, RunStarted)]
    readings = [e for e in found if isinstance(e, MemoryHeld) and e.phase in PHASES]
    return MemoryRecord(
        path.stem,
        begun[-1] if begun else "",
        tuple(sorted(readings, key=lambda reading: reading.at)),
        tuple(event for event in found if isinstance(event, MemoryPlanned)),
    )


def _event(line: str) -> Event | None:
    """Read a line of a record; None where it is torn, or not one of the events that are wanted."""
    if '"Memory' not in line and '"RunStarted"' not in line:
        return None  # of a long run these are few
    event = replies.decoded(line)
    kind = WANTED.get(str(replies.at(event, "event")))
    if kind is None or "at" not in event:
        return None
    try:
        return kind.validate_json(line, strict=True)
    except ValidationError:
        return None
