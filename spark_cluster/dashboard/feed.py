"""What the nodes send, kept for a while and handed to every page that asks."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol

from spark_cluster.bench.sampling import LiveState, Lost, Update, warnings

KEPT_S = 1800
"""Seconds of samples that a page begins with."""
LOOK_S = 0.5


class Source(Protocol):
    """What samples come from: `bench.sampling.Sampling`, or a recording."""

    def next(self, timeout: float) -> Update | None:
        """Return the next sample or loss; None after so many seconds without one."""


class Feed:
    """The samples of all nodes in the last half hour, each with a number that grows.

    `run` belongs to a thread of its own; the threads that answer pages call `since`.

    Args:
        names: of the nodes, in the order in which they are shown.
        every: seconds between two samples of a node.
    """

    def __init__(self, names: list[str], every: float) -> None:
        self.names = names
        self.every = every
        self._live = LiveState(names, every)
        self._kept: dict[str, deque[tuple[int, dict[str, Any]]]] = {
            name: deque(maxlen=max(1, round(KEPT_S / every))) for name in names
        }
        self._last = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        """True if no sample comes any more."""
        return self._ended.is_set()

    def run(self, source: Source) -> None:
        """Take samples until `end`.

        An unexpected fault ends it: the pages then show that nothing comes any more.
        """
        try:
            while not self.has_ended:
                update = source.next(LOOK_S)
                if update is not None:
                    self.take(update)
        finally:
            self.end()

    def take(self, update: Update) -> None:
        """Take in a sample, or that a node was lost."""
        with self._lock:
            self._live.take(update)
            if not isinstance(update, Lost):
                self._last += 1
                message = update.to_dict() | {"warnings": warnings(update)}
                self._kept[update.node].append((self._last, message))

    def since(self, number: int) -> dict[str, Any]:
        """Return the samples after one, and which nodes do not answer, for a page.

        Args:
            number: of the last sample that the page has; 0 for all that are kept.
        """
        with self._lock:
            return {
                "nodes": self.names,
                "every": self.every,
                "last": self._last,
                "rows": {n: [m for at, m in kept if at > number] for n, kept in self._kept.items()},
                "troubles": {n: self._live.trouble(node) for n, node in self._live.nodes.items()},
            }

    def end(self) -> None:
        """End it."""
        self._ended.set()
