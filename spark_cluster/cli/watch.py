"""Who sees the runs that a thread begins: the command line's display, a stream of events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_cluster.cli.recap import Recap
    from spark_cluster.runner.events import Sink
    from spark_cluster.runner.options import Options


class WatchedRun(Protocol):
    """A run that is about to connect, as a watcher sees it."""

    @property
    def change(self) -> bool:
        """True if it may change nodes, in check mode too."""

    @property
    def check(self) -> bool: ...
    @property
    def options(self) -> Options: ...
    @property
    def recap(self) -> Recap: ...
    @property
    def seconds(self) -> float: ...
    def cancel(self) -> None: ...


Watch = Callable[[WatchedRun], "Sink"]
"""Is given a run before it connects, and returns a sink for its events."""

_current: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Have `watch` see each run that this thread begins in the block, in place of any other."""
    token = _current.set(watch)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Watch | None:
    """Return who sees the runs of this thread."""
    return _current.get()
