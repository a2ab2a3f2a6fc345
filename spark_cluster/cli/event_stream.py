"""Events as an iterator, while the operation that they come from goes on in a thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from spark_cluster.cli.opened import watching
from spark_cluster.cli.run import Run
from spark_cluster.errors import Failed, Interrupted, SparkClusterError
from spark_cluster.runner.events import Event, RunFinished
from spark_cluster.runner.parallel import start

T = TypeVar("T")

END_S = 120.0
"""Seconds in which a cancelled operation must have ended. Connections are closed at once; a
connection that is just being made takes at most the inventory's `connect_timeout_s`."""


class EventStream(Generic[T]):
    """The events of an operation, one by one, and then its result. Made by `Cluster.events`.

    The operation begins with the block or the first event, and goes on whether or not its events
    are read. Leaving the block ends it as Ctrl-C does, if it has not ended, and waits for that;
    so does dropping the stream, and closing the cluster. Leaving the loop only does not end it:
    `result()` still waits for the whole of it.

    The loop and `result()` raise the operation's error. Ctrl-C in the loop is raised there; it is
    the end of the block that ends the run.
    """

    def __init__(self, operation: Callable[[], T]) -> None:
        self._work = _Work(operation)
        self._read = False
        self._drop = weakref.finalize(self, _drop, self._work)

    def __enter__(self) -> EventStream[T]:
        self._work.begin()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: the operation is over, and all of its events were read.
            SparkClusterError: the same, when it failed.
        """
        if self._read:
            raise StopIteration
        self._work.begin()
        event = self._work.events.get()
        if event is not None:
            return event
        self._read = True
        self.result()
        raise StopIteration

    def result(self) -> T:
        """Wait for the end of the operation, and return its result.

        Raises:
            Interrupted: it was cancelled before its end.
            SparkClusterError: it failed.
        """
        return self._work.outcome()

    def cancel(self) -> None:
        """End the operation as Ctrl-C does, and wait for its end; do nothing if it has ended.

        Raises:
            Failed: it has not ended within END_S seconds.
        """
        self._drop.detach()
        if not self._work.end(END_S):
            raise Failed(
                f"the run has not ended within {END_S:g} s of its cancellation",
                hint="its connections are closed, and the agents on the nodes end by themselves; "
                "end this process if it must not go on here",
            )


class _Work(Generic[T]):
    """The operation and its thread, which must not keep the stream itself alive."""

    def __init__(self, operation: Callable[[], T]) -> None:
        self.events: SimpleQueue[Event | None] = SimpleQueue()
        self._operation = operation
        self._lock = threading.Lock()
        self._future: Future[T | SparkClusterError] | None = None
        self._thread: threading.Thread | None = None
        self._run: Run | None = None
        self._cancelled = False

    def begin(self) -> Future[T | SparkClusterError]:
        """Begin once; one that was cancelled before only says so."""
        with self._lock:
            if self._future is None:
                self._future = start(self._go)
            return self._future

    def outcome(self) -> T:
        """Wait for its end."""
        found = self.begin().result()
        if isinstance(found, SparkClusterError):
            raise found
        return found

    def end(self, within_s: float) -> bool:
        """Cancel it; return whether it has ended within so many seconds."""
        with self._lock:
            self._cancelled = True
            run, future = self._run, self._future
        if future is None or threading.current_thread() is self._thread:
            return True
        if run is not None:
            run.cancel()
        return not wait([future], within_s).not_done

    def _go(self) -> T:
        self._thread = threading.current_thread()
        try:
            if self._cancelled:
                raise Interrupted("cancelled before it began; nothing was done")
            with watching(self._watch):
                return self._operation()
        finally:
            self.events.put(None)

    def _watch(self, run: Run) -> _Work[T]:
        with self._lock:
            self._run = run
            if self._cancelled:
                raise KeyboardInterrupt
        return self

    def take(self, event: Event) -> None:
        """Hand an event on; where it was cancelled, end the run's own thread as Ctrl-C does."""
        self.events.put(event)
        own = threading.current_thread() is self._thread
        if self._cancelled and own and not isinstance(event, RunFinished):
            raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing is open."""


def _drop(work: _Work[T]) -> None:
    work.end(END_S)
