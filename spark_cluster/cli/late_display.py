"""A display that is imported while the nodes are at work, and shows then what it missed."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import click

from spark_cluster.cli.visible import visible
from spark_cluster.runner.events import (
    Connected,
    Event,
    RunFinished,
    RunStarted,
    Sink,
    StageStarted,
)

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from spark_cluster.cli.display import Display
    from spark_cluster.cli.watch import WatchedRun

WITHIN_S = 0.15
"""Seconds after which a title is shown, also when nothing has been sent to any node yet."""

_TITLES = (RunStarted, StageStarted, Connected)


@runtime_checkable
class Quiet(Protocol):
    """A sink that can hold events back."""

    def quiet(self) -> contextlib.AbstractContextManager[None]: ...


class LateDisplay:
    """A sink in front of the one that draws: importing rich takes as long as a short play.

    It is made in the background with the first event that tells of work, or a moment after a
    title; not at all when there is nothing to show.

    Args:
        make: imports and makes the sink that draws.
        verbose: connections are shown too.
        titled: the start of the run is shown.
    """

    def __init__(self, make: Callable[[], Sink], *, verbose: bool, titled: bool) -> None:
        self._make = make
        seen = {RunFinished: False, Connected: verbose, RunStarted: titled}
        self._unseen = tuple(kind for kind, is_seen in seen.items() if not is_seen)
        self._lock = threading.Lock()
        self._now = threading.Event()
        self._kept: list[Event] = []
        self._sink: Sink | None = None
        self._maker: threading.Thread | None = None
        self._error: Exception | None = None

    def take(self, event: Event) -> None:
        with self._lock:
            sink = self._sink
            if sink is None:
                self._kept.append(event)
        if sink is not None:
            sink.take(event)
        elif not isinstance(event, self._unseen):
            if self._maker is None:
                self._maker = threading.Thread(target=self._begin, daemon=True)
                self._maker.start()
            if not isinstance(event, _TITLES):
                self._now.set()
        if isinstance(event, RunFinished):  # a command prints its result next
            self.settle()

    def settle(self) -> None:
        """Wait until all that was told is shown.

        Raises:
            OSError: it cannot be written.
        """
        if self._maker is not None:
            self._now.set()
            self._maker.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Show all that was told, and hold events back while a person is asked."""
        self.settle()
        held = self._sink
        with held.quiet() if isinstance(held, Quiet) else contextlib.nullcontext():
            yield

    def close(self) -> None:
        self.settle()
        if self._sink is not None:
            self._sink.close()

    def _begin(self) -> None:
        self._now.wait(WITHIN_S)
        try:
            sink = self._make()
            with self._lock:
                for event in self._kept:
                    sink.take(event)
                self._sink = sink
        except Exception as error:  # noqa: BLE001  (handed to who waits)
            self._error = error


def shown(run: WatchedRun, draw: Callable[[], Display], *, verbose: bool, asks: bool) -> Sink:
    """Return what shows a run; with --step it also asks.

    The process is the run's from here on: garbage is collected again, and SIGTERM ends it as
    Ctrl-C does.

    Args:
        draw: imports and begins what draws.
        verbose: also what was fine already.
        asks: a person can be asked on the terminal.
    """
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGTERM, _interrupt)
    sink: Display | LateDisplay
    if run.options.step:
        from spark_cluster.cli.step import Stepper

        sink = draw()
        run.options.ask = Stepper(sink).ask
    else:
        sink = LateDisplay(draw, verbose=verbose, titled=run.change)
    if asks:
        run.options.consent = partial(_consent, sink)
    return sink


def _consent(sink: Display | LateDisplay, question: str) -> bool:
    """Ask on the terminal; Enter is a no."""
    with sink.quiet():
        return click.confirm(visible(question))


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt
