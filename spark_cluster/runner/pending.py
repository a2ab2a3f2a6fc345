"""Requests to an agent that are on their way, and how long each is waited for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from spark_cluster.agent.shape import Shape
from spark_cluster.errors import Failed, SparkClusterError

OnEvent = Callable[[dict[str, Any]], None]
OnAsk = Callable[[dict[str, Any]], str]
Blobs = Mapping[str, bytes | Path]
"""Contents by SHA-256: themselves, or the file of the laptop that has them."""

OVERDUE_S = 60.0
"""Seconds after its own limit at which an answer is waited for no longer, alive as the agent may
be: more than it needs to end what hangs."""

USUAL_S = 300.0
"""Limit, in seconds, of a request that names none."""

LONGEST_STEP_S = 4 * 3600.0
"""Limit, in seconds, of one step of a document, unless a resource names a longer one: that of the
longest whose limit is fixed (pulling an image)."""

LONG_WORK_S = 24 * 3600.0
"""Limit, in seconds, of work that says how far it is: reading, copying and verifying models and
images. Without a word from it, the limit is that of any request."""

ACKNOWLEDGED = 64 * 1024
"""Characters of streamed output after which the agent is told that they were shown."""


class Conversation(Protocol):
    """The parts of a session that a request sent over it uses."""

    @property
    def node(self) -> str: ...
    @property
    def receiving(self) -> bool: ...
    def give(self, number: int, need: Mapping[str, Any], content: bytes | Path) -> None: ...
    def answer(self, number: int, text: str) -> None: ...
    def tell_shown(self, number: int, size: int) -> None: ...
    def forget(self, number: int) -> None: ...
    def refuse(self, fault: str) -> SparkClusterError: ...


class Pending:
    """A request on its way.

    Args:
        limit: seconds without any word about this request after which it is waited for no longer;
            infinite for what has no end of its own.
        reply: the shape of its reply.
    """

    def __init__(
        self, session: Conversation, number: int, op: str, limit: float, reply: Shape
    ) -> None:
        self.session = session
        self.number = number
        self.op = op
        self.limit = limit
        self.reply = reply
        self.mailbox: queue.Queue[dict[str, Any] | SparkClusterError] = queue.Queue()
        self._shown = 0

    def wait(
        self,
        on_event: OnEvent | None = None,
        blobs: Blobs | None = None,
        on_ask: OnAsk | None = None,
    ) -> dict[str, Any]:
        """The reply.

        Args:
            on_event: called in this thread with each event before the reply.
            blobs: contents that the agent may ask for, by SHA-256.
            on_ask: answers what the agent asks before a change, if it was told to ask.

        Raises:
            Unreachable: the connection is gone, or was lost meanwhile.
            Failed: the node could not do it, or does not get done with it.
        """
        since, longest = time.monotonic(), longest_of(self.op, self.limit)
        try:
            while True:
                event = self._next(since + longest)
                kind, begun = event["event"], time.monotonic()
                if kind == "need":
                    self._give(event, blobs or {})
                elif kind == "ask":
                    self.session.answer(self.number, on_ask(event) if on_ask else "yes")
                elif kind == "done":
                    return self._reply(event)
                else:
                    if on_event is not None:
                        on_event(event)
                    self._acknowledge(event)
                if kind in ("need", "ask"):  # what the laptop and its user take is not the node's
                    since += time.monotonic() - begun
                elif kind == "result" and self.op == "apply":  # the next step has its own limit
                    since = time.monotonic()
        finally:
            self.session.forget(self.number)

    def _next(self, until: float) -> dict[str, Any]:
        """Return the next message.

        Raises:
            Failed: none comes within the limit, or the last one not until then, although the agent
                is alive.
            SparkClusterError: the session has ended.
        """
        left = min(self.limit, until - time.monotonic())
        try:
            if left < 0:
                raise queue.Empty
            event = self.mailbox.get(timeout=min(left, threading.TIMEOUT_MAX))
        except queue.Empty:
            slow = "its answer comes too slowly" if self.session.receiving else ""
            raise Failed(
                f"`{self.op}` got no answer for {self.limit:.0f} s, although the agent is "
                f"alive: {slow or 'something on the node hangs'}",
                where=self.session.node,
                hint="look there for processes in uninterruptible sleep (`ps axl`, state D) "
                "and at `journalctl -k`; a reboot may be all that helps",
            ) from None
        if isinstance(event, SparkClusterError):
            raise event
        return event

    def _give(self, need: Mapping[str, Any], blobs: Blobs) -> None:
        content = blobs.get(need["sha256"])
        if content is None:
            raise self.session.refuse(f"it needs a content that `{self.op}` does not have")
        self.session.give(self.number, need, content)

    def _reply(self, event: dict[str, Any]) -> dict[str, Any]:
        if "error" in event:
            raise Failed(event["error"], where=self.session.node, hint=event.get("hint", ""))
        return event

    def _acknowledge(self, event: dict[str, Any]) -> None:
        """Tell the agent what was shown of its stream, so that it sends more."""
        if event["event"] != "output":
            return
        self._shown += len(event["text"])
        if self._shown >= ACKNOWLEDGED:
            self.session.tell_shown(self.number, self._shown)
            self._shown = 0


def limit_of(op: str, timeout: float | None, step_s: float) -> float:
    """Seconds without a word after which a request is given up; see `Pending`."""
    if op in ("stream", "telemetry"):
        return float("inf")
    if op in ("apply", "revert"):  # each step tells its end, and may take its own time
        return max(LONGEST_STEP_S, step_s) + OVERDUE_S
    return (timeout or USUAL_S) + OVERDUE_S


def longest_of(op: str, limit: float) -> float:
    """Seconds that a request may take in all, whatever is said about it meanwhile; of `apply`,
    each of its steps."""
    return max(limit, LONG_WORK_S) if op in ("caches", "copy", "image", "store") else limit
