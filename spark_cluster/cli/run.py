"""A run as a command shows it: its display, its closing table, its end by a signal."""

from __future__ import annotations

import gc
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import click

from spark_cluster.cli.late_display import LateDisplay
from spark_cluster.cli.visible import visible
from spark_cluster.cluster import run

if TYPE_CHECKING:
    from spark_cluster.cli.console import Console
    from spark_cluster.cli.display import Display
    from spark_cluster.cluster.watch import WatchedRun
    from spark_cluster.runner.events import Sink


class Program(Protocol):
    """The parts of the program that showing a run uses."""

    as_json: bool
    verbose: bool

    @property
    def console(self) -> Console: ...


class Run(run.Run):
    """A run that a command makes itself, with what shows its end."""

    app: Program

    def show_recap(self) -> None:
        """The closing table, unless the output is JSON."""
        show_recap(self.app, self)


def shown(app: Program, run: WatchedRun) -> Sink:
    """Return what shows a run; with --step it also asks.

    The process is the run's from here on: garbage is collected again, and SIGTERM ends it as
    Ctrl-C does.
    """
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGTERM, _interrupt)

    def draw() -> Display:
        """Import and begin what draws."""
        from spark_cluster.cli.display import Display

        return Display(app.console, verbose=app.verbose, titled=run.change)

    sink: Display | LateDisplay
    if run.options.step:
        from spark_cluster.cli.step import Stepper

        sink = draw()
        run.options.ask = Stepper(sink).ask
    else:
        sink = LateDisplay(draw, verbose=app.verbose, titled=run.change)
    if not app.as_json and sys.stdin.isatty() and sys.stdout.isatty():
        run.options.consent = partial(_consent, sink)
    return sink


def _consent(sink: Display | LateDisplay, question: str) -> bool:
    """Ask on the terminal; Enter is a no."""
    with sink.quiet():
        return click.confirm(visible(question))


def show_recap(app: Program, run: WatchedRun) -> None:
    """Print the closing table of a run, unless the output is JSON."""
    from spark_cluster.cli.display import recap

    if not app.as_json:
        recap(app.console, run.recap, run.seconds, check=run.check)


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt
