"""The run record on the laptop: every event of a run as JSON lines, kept next to the last ones, and
the plot of its memory next to it."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
from collections.abc import Callable
from pathlib import Path

from spark_cluster.config.caches import state_folder
from spark_cluster.engine.memory_phases import MemoryPhases
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.runner.events import Bus, Event, Note

KEPT = 200
"""Runs whose records are kept."""


class RunRecord:
    """The writer of `runs/RUN.jsonl`, readable by its user only.

    Args:
        on_error: is told once when it cannot be written any more, as on a full disk; the run goes
            on without it.

    Raises:
        Failed: the file cannot be made.
    """

    def __init__(
        self,
        run: str,
        folder: Path | None = None,
        on_error: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.folder = (folder or state_folder()) / "runs"
        self.path = self.folder / f"{run}.jsonl"
        self._on_error = on_error
        self._broken = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise Failed(
                f"the run record cannot be written: {error.strerror}",
                where=str(self.path),
                hint="XDG_STATE_HOME names another folder for it",
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the first event tells
            self._forget_oldest()

    def take(self, event: Event) -> None:
        if self._broken:
            return
        line = json.dumps(event.to_dict(), default=str).encode() + b"\n"
        try:
            size = os.fstat(self._handle).st_size
            if os.write(self._handle, line) < len(line):
                os.ftruncate(self._handle, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._broken = True
            self._on_error(
                f"the run record {self.path} cannot be written any more ({error.strerror}); "
                "the run continues, and its record ends here"
            )

    def close(self) -> None:
        self._broken = True
        with contextlib.suppress(OSError):
            os.close(self._handle)

    def _forget_oldest(self) -> None:
        """Remove the oldest records, by the order in which they began: clocks can be behind."""
        order = self.folder.with_name("runs.order")
        with order.open("a") as out:
            out.write(f"{self.path.name}\n")
        place = {name: number for number, name in enumerate(order.read_text().splitlines())}
        records = list(self.folder.glob("*.jsonl"))
        records.sort(key=lambda path: (place.get(path.name, -1), path.name))
        for old in records[:-KEPT]:
            for found in self.folder.glob(f"{glob.escape(old.stem)}.*"):  # the plot of its memory
                found.unlink(missing_ok=True)
        if len(place) > 2 * KEPT:
            staged = order.with_name(f"runs.order.{os.getpid()}")
            staged.write_text("".join(f"{path.name}\n" for path in records[-KEPT:]))
            staged.replace(order)


def keep_plot(run: str, bus: Bus, memory: MemoryPhases) -> Path | None:
    """Draw the memory of a run next to its record; None where nothing is drawn.

    A server that serves is not failed for its plot: what goes wrong is a note. Without matplotlib,
    which comes with the extra `bench`, nothing is drawn and nothing said: the readings are in the
    record, and `vram --plot` names the extra.
    """
    if all(node.under_load is None for node in memory.nodes.values()):
        return None  # nothing was started
    from spark_cluster.bench.report import plot_run
    from spark_cluster.engine import memory_record

    if not plot_run.is_installed():
        return None
    path = memory_record.plot_path(run)
    try:
        plot_run.write_plot(memory_record.of_run(run), path)
    except SparkClusterError as error:
        bus.emit(Note(f"no plot of the memory: {error}", "warning"))
        return None
    return path
