"""What the nodes send, kept for a while and handed to every open page."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

from spark_cluster.bench.sampling import LiveState, Lost, Update, warnings

KEPT_S = 1800
"""Seconds of samples that a page begins with."""
LOOK_S = 0.5
WAITING = 256
"""Messages that a page may be behind; one that is further behind gets all anew."""

Message = dict[str, Any]


class Source(Protocol):
    """What samples come from: `bench.sampling.Sampling`, or a recording."""

    def next(self, timeout: float) -> Update | None:
        """Return the next sample or loss; None after so many seconds without one."""


class _Page:
    """A page that is open, in the event loop that it is made in."""

    def __init__(self) -> None:
        self.behind = False
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Message | None] = asyncio.Queue(WAITING)

    def hand(self, message: Message | None) -> None:
        """Hand it a message, from any thread; None ends it."""
        with suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: Message | None) -> None:
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            self.behind = True

    async def next(self) -> Message | None:
        return await self._waiting.get()

    def catch_up(self) -> None:
        """Forget what waits: the page gets all anew."""
        self.behind = False
        while not self._waiting.empty():
            self._waiting.get_nowait()


class Feed:
    """The samples of all nodes: the last half hour, and what comes.

    `run` belongs to a thread of its own, `follow` to the server's event loop.

    Args:
        names: of the nodes, in the order in which they are shown.
        every: seconds between two samples of a node.
    """

    def __init__(self, names: list[str], every: float) -> None:
        self.names = names
        self.every = every
        self._live = LiveState(names, every)
        self._kept: dict[str, deque[Message]] = {
            name: deque(maxlen=max(1, round(KEPT_S / every))) for name in names
        }
        self._troubles: dict[str, str] = {}
        self._lock = threading.Lock()
        self._pages: set[_Page] = set()
        self._ended = threading.Event()

    # -- in the thread of the samples ------------------------------------------------------------

    def run(self, source: Source) -> None:
        """Take samples until `end`.

        An unexpected fault ends it: the pages then show that nothing comes any more.
        """
        try:
            while not self._ended.is_set():
                update = source.next(LOOK_S)
                if update is not None:
                    self.take(update)
                self._tell_troubles()
        finally:
            self.end()

    def take(self, update: Update) -> None:
        """Take in a sample, or that a node was lost."""
        self._live.take(update)
        if isinstance(update, Lost):
            return
        message = update.to_dict() | {"warnings": warnings(update)}
        with self._lock:
            self._kept[update.node].append(message)
            self._send({"row": message})

    def _tell_troubles(self) -> None:
        """Tell the pages which nodes do not answer, when that has changed."""
        now = {name: self._live.trouble(node) for name, node in self._live.nodes.items()}
        with self._lock:
            if now != self._troubles:
                self._troubles = now
                self._send({"troubles": now})

    def end(self) -> None:
        """End it, and every page's stream."""
        self._ended.set()
        with self._lock:
            for page in self._pages:
                page.hand(None)

    def _send(self, message: Message) -> None:
        for page in self._pages:
            page.hand(message)

    # -- in the server's event loop --------------------------------------------------------------

    async def follow(self) -> AsyncIterator[Message]:
        """Yield all that is kept in one message, then what comes, until the feed ends."""
        page = _Page()
        with self._lock:
            self._pages.add(page)
            first = self._all()
        try:
            yield first
            while not self._ended.is_set():
                message = await page.next()
                if page.behind:
                    page.catch_up()
                    with self._lock:
                        message = self._all()
                if message is None:
                    return
                yield message
        finally:
            with self._lock:
                self._pages.discard(page)

    def _all(self) -> Message:
        return {
            "nodes": self.names,
            "every": self.every,
            "rows": {name: list(rows) for name, rows in self._kept.items()},
            "troubles": self._troubles,
        }
