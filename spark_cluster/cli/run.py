"""A run over nodes: connected, watched, recorded, ended in order."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.cli.results import Recap, RunSummary
from spark_cluster.config.folders import keeping, state_folder
from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.project import Project
from spark_cluster.config.schema import as_json
from spark_cluster.engine.memory_phases import MemoryPhases
from spark_cluster.errors import Interrupted, SparkClusterError
from spark_cluster.runner import connections
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.events import Bus, Event, Note, Options, RunFinished, RunStarted, Sink
from spark_cluster.runner.play import Play

KEPT = 200
"""Runs whose records are kept."""

LOADING = "load"
"""Stage of `up` in which a server loads by itself, whoever waits for it."""


class RunRecord:
    """The writer of `runs/RUN.jsonl`, readable by its user only.

    Args:
        on_error: is told once when it cannot be written any more, as on a full disk; the run goes
            on without it.

    Raises:
        Failed: the file cannot be made.
    """

    def __init__(self, run: str, on_error: Callable[[str], None] = lambda _text: None) -> None:
        self.folder = state_folder() / "runs"
        self.path = self.folder / f"{run}.jsonl"
        self._on_error = on_error
        self._broken = False
        with keeping("the run record cannot be written", self.path):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
    from spark_cluster.bench.report import rendering
    from spark_cluster.engine import vram

    if not rendering.is_installed():
        return None
    path = vram.plot_path(run)
    try:
        rendering.write_plot(vram.of_run(run), path)
    except SparkClusterError as error:
        bus.emit(Note(f"no plot of the memory: {error}", "warning"))
        return None
    return path


class Run:
    """A play, its recap, its record, its end. Connecting begins with the object.

    Args:
        inventory, project: what the play is over, and where its roles are.
        dialer: reaches the nodes.
        command: what the user asked for, for the record, and for whoever meets this run's locks.
        nodes: those of the inventory that it is over.
        run_id: as `history` and `revert` know it.
        change: it may change nodes: it is recorded and holds their locks, outside check mode.
        gather_facts: at once; otherwise when one is first read.
        started: when its time began, seconds on the monotonic clock.
        watch: gives it a sink that shows its events.

    Attributes:
        cancelled: it was told to end.
    """

    def __init__(
        self,
        inventory: Inventory,
        project: Project,
        dialer: Dialer,
        command: str,
        nodes: Sequence[InventoryNode],
        options: Options,
        *,
        run_id: str,
        change: bool,
        gather_facts: bool,
        started: float,
        watch: Callable[[Run], Sink] | None,
    ) -> None:
        self.command = command
        self.options = options
        self.change = change
        self.id = run_id
        self.recap = Recap()
        self.memory = MemoryPhases()
        self.bus = Bus(self.recap, self.memory)
        self._started = started
        self._watch = watch
        self._begun = self._finished = self.cancelled = False
        if change:
            record = RunRecord(self.id, on_error=lambda why: self.bus.emit(Note(why, "warning")))
            self.bus.add(record)
        self.connections = connections.Connections(
            {node.name: node for node in nodes},
            self.bus,
            self.id,
            command=command,
            change=change and not options.check,
            gather_facts=gather_facts,
            dialer=dialer,
        )
        self.connections.begin()  # what follows is imported while the network is waited for
        if change:
            import jinja2  # noqa: F401  (roles with templates want it next)

        self._play = Play(inventory, project, self.connections, self.bus, options)

    @property
    def check(self) -> bool:
        """True if it changes nothing."""
        return self.options.check

    @property
    def seconds(self) -> float:
        """Seconds since its time began."""
        return time.monotonic() - self._started

    def open(self, *, fail_fast: bool = True) -> Play:
        """Connect; with `fail_fast` every node has to be there.

        Raises:
            SparkClusterError: the first node's error.
        """
        if self._watch is not None:
            self.bus.add(self._watch(self))
        names = tuple(self.connections.nodes)
        self.bus.emit(RunStarted(self.id, self.command, names, self.check))
        failed = self.connections.open()
        self._play.out.update(failed)
        if failed and (fail_fast or len(failed) == len(names)):
            raise next(iter(failed.values()))
        self._begun = True
        return self._play

    def summary(self, *, ok: bool = True) -> RunSummary:
        """Return how it went so far."""
        seconds = {**self._play.seconds, "total": round(self.seconds, 3)}
        return RunSummary(self.id, ok, self.recap.changed, seconds)

    def document(self, *results: Any, ok: bool = True, **found: Any) -> dict[str, Any]:
        """Return the JSON of a run that can change something: how it went, the keys of results
        (None has none), and what else it `found`."""
        keys = {k: v for one in results if one is not None for k, v in as_json(one).items()}
        return {**self.summary(ok=ok).to_dict(), **keys, **as_json(found)}

    def cancel(self) -> None:
        """End it from another thread as Ctrl-C does; its own thread raises Interrupted.

        What waits for a node ends with the connections; everything else at the next event.
        """
        self.cancelled = True
        self.connections.close()

    def interrupted(self) -> Interrupted:
        """Return the error that says in which state an interrupt leaves things."""
        at_work = [f"{node} was at {what}" for node, what in self.recap.last.items()]
        if self._play.after_interrupt:
            state = ", ".join(at_work) or "no node was being changed"
            return Interrupted(f"interrupted; {state}", hint=self._play.after_interrupt)
        if not at_work and self._play.failed_stage == LOADING:
            return Interrupted(
                "interrupted; no node was being changed, and the server keeps loading",
                hint="run the same command again to continue, which waits for it; `spark-cluster "
                "status` shows it, `spark-cluster down` ends it",
            )
        if not at_work:
            return Interrupted(
                "interrupted; no node was being changed",
                hint="run the same command again to continue",
            )
        return Interrupted(
            f"interrupted; {', '.join(at_work)}",
            hint="a package manager or an image pull finishes there by itself, so do a model's "
            "download and a tuner; everything else is stopped within seconds, and no file is "
            "half-written. Run the same command again to continue",
        )

    def finish(self, error: str = "") -> None:
        """Tell the sinks that it is over.

        Raises:
            UsageError: all went well, but a name of --tags or --start-at was never met.
        """
        if self._finished:
            return
        self._finished = True
        unmatched = self.options.selection.unmatched() if self._begun and not error else None
        error = str(unmatched or error)
        self.bus.emit(RunFinished(not error, self.seconds, error))
        if unmatched is not None:  # before anyone hears that all is well
            raise unmatched

    def close(self) -> None:
        """End the sinks first, among them a live display, then the connections."""
        self.bus.close()
        self.connections.close()


@contextlib.contextmanager
def ended(run: Run) -> Iterator[Run]:
    """Have a run end in order whatever happens in the block.

    Raises:
        Interrupted: on Ctrl-C, or when it was cancelled.
        SparkClusterError: what the block raises.
    """
    try:
        yield run
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt) or run.cancelled:
            interrupted = run.interrupted()  # also for a connection closed under what uses it
            run.finish(error=str(interrupted))
            raise interrupted from error
        if isinstance(error, SparkClusterError):
            run.finish(error=str(error))
        raise
    else:
        run.finish()
    finally:
        run.close()
