"""A run as a command sees it: connected, shown, recorded, ended in order."""

from __future__ import annotations

import gc
import signal
from typing import TYPE_CHECKING, Any, Protocol

from spark_cluster.cli import process_start
from spark_cluster.cli.late_display import LateDisplay
from spark_cluster.errors import Interrupted
from spark_cluster.runner import connections
from spark_cluster.runner.events import Bus, Note, Recap, RunFinished, RunStarted
from spark_cluster.runner.record import Record

if TYPE_CHECKING:
    from spark_cluster.cli.console import Console
    from spark_cluster.cli.display import Display
    from spark_cluster.config.inventory import Inventory, InventoryNode
    from spark_cluster.loader.project import Project
    from spark_cluster.runner.options import Options
    from spark_cluster.runner.play import Play


class Program(Protocol):
    """The parts of the program that a run uses."""

    as_json: bool
    verbose: bool

    @property
    def project(self) -> Project: ...
    @property
    def inventory(self) -> Inventory: ...
    @property
    def console(self) -> Console: ...
    @property
    def run_id(self) -> str: ...
    def load_extensions(self) -> None: ...


class Run:
    """A run as the command line sees it: a play, its recap, its end."""

    def __init__(
        self,
        app: Program,
        command: str,
        nodes: list[InventoryNode],
        options: Options,
        *,
        change: bool,
        gather_facts: bool,
    ) -> None:
        app.load_extensions()
        self.app = app
        self.command = command
        self.check = options.check
        self._selection = options.selection
        self.begun = False
        self.recap = Recap()
        self.id = app.run_id
        self.bus = Bus(self.recap)
        if change:
            record = Record(self.id, on_error=lambda why: self.bus.emit(Note(why, "warning")))
            self.bus.add(record)
        self.connections = connections.Connections(
            nodes,
            self.bus,
            self.id,
            command=command,
            change=change and not options.check,
            gather_facts=gather_facts,
        )
        self.connections.begin()  # what follows is imported while the network is waited for
        if change:
            import jinja2  # noqa: F401  (roles with templates want it next)

        from spark_cluster.runner.play import Play

        self._titled = change
        self._display = LateDisplay(self._draw, verbose=app.verbose, titled=change)
        if options.step:
            from spark_cluster.cli.step import Stepper

            display = self._draw()
            self.bus.add(display)
            options.ask = Stepper(display).ask
        else:
            self.bus.add(self._display)
        self._play = Play(app.inventory, app.project, self.connections, self.bus, options)
        self._finished = False

    def _draw(self) -> Display:
        """Import and begin what draws."""
        from spark_cluster.cli.display import Display

        return Display(self.app.console, verbose=self.app.verbose, titled=self._titled)

    def open(self, *, fail_fast: bool = True) -> Play:
        """Connect; with `fail_fast` every node has to be there.

        Raises:
            SparkClusterError: the first node's error.
        """
        gc.freeze()
        gc.enable()
        names = tuple(self.connections.nodes)
        signal.signal(signal.SIGTERM, _interrupt)
        self.bus.emit(RunStarted(self.id, self.command, names, self.check))
        failed = self.connections.open()
        self._play.out.update(failed)
        if failed and (fail_fast or len(failed) == len(names)):
            raise next(iter(failed.values()))
        self.begun = True
        return self._play

    @property
    def seconds(self) -> float:
        """Since the process began."""
        return process_start.elapsed()

    def to_dict(self, *, ok: bool = True, **found: Any) -> dict[str, Any]:
        """The JSON of a run that can change something: `found` between what all of them tell."""
        seconds = {**self._play.seconds, "total": round(self.seconds, 3)}
        return {"ok": ok, "changed": self.recap.changed, **found, "seconds": seconds}

    def interrupted(self) -> Interrupted:
        """Return the error that says in which state an interrupt leaves things."""
        at_work = [f"{node} was at {what}" for node, what in self.recap.last.items()]
        if not at_work:
            return Interrupted(
                "interrupted; no node was being changed",
                hint="run the same command again to continue",
            )
        return Interrupted(
            f"interrupted; {', '.join(at_work)}",
            hint="a package manager or an image pull finishes there by itself, so does a model's "
            "download; everything else is stopped within seconds, and no file is half-written. "
            "Run the same command again to continue",
        )

    def finish(self, error: str = "") -> None:
        """Tell the sinks that it is over.

        Raises:
            UsageError: all went well, but a name of --tags or --start-at was never met.
        """
        if self._finished:
            return
        self._finished = True
        unmatched = self._selection.unmatched() if self.begun and not error else None
        error = str(unmatched or error)
        self.bus.emit(RunFinished(not error, self.seconds, error))
        self._display.settle()
        if unmatched is not None:  # before a command prints that all is well
            raise unmatched

    def show_recap(self) -> None:
        """The closing table, unless the output is JSON."""
        from spark_cluster.cli.display import recap

        if not self.app.as_json:
            recap(self.app.console, self.recap, self.seconds, check=self.check)

    def close(self) -> None:
        """End the live display first, then the connections."""
        self.bus.close()
        self.connections.close()


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt
