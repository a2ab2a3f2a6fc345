"""The GPU memory of a recorded run over time: read back from the events in its record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from spark_cluster.config.folders import state_folder
from spark_cluster.engine.memory_phases import PHASES, MemoryPhases
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import replies
from spark_cluster.runner.events import Event, MemoryHeld, MemoryPlanned, RunStarted

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
        raise UsageError(f"{run!r} is no id of a run", hint="`spark-cluster history` lists them")
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
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise Failed(f"the run record cannot be read: {error.strerror}", where=str(path)) from None
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
