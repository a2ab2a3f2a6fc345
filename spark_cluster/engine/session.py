"""A conversation with one node's agent: requests from any thread, events to whoever asked."""

from __future__ import annotations

import contextlib
import io
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.agent import frames
from spark_cluster.engine import payload
from spark_cluster.engine.channel import Channel
from spark_cluster.errors import Failed, SparkClusterError, Unreachable

OnEvent = Callable[[dict[str, Any]], None]
OnAsk = Callable[[dict[str, Any]], str]
Blobs = Mapping[str, bytes]

LOST_AFTER = 15.0
"""Seconds of silence (the agent gives a sign of life every 5) after which the node is lost."""

START_WITHIN = 30.0
"""Seconds an agent may take to say its first word."""


@dataclass(frozen=True)
class Output:
    """A command that ran on a node."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Answer:
    """An HTTP answer that a node got; `status` 0 and a `reason` when there was none."""

    status: int
    body: str
    reason: str = ""


class Pending:
    """A request on its way."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.mailbox: queue.Queue[dict[str, Any] | SparkClusterError] = queue.Queue()

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
            Failed: the node could not do it.
        """
        try:
            while True:
                event = self.mailbox.get()
                if isinstance(event, SparkClusterError):
                    raise event
                if event["event"] == "need":
                    self.session.give(self.number, event["sha256"], (blobs or {})[event["sha256"]])
                elif event["event"] == "ask":
                    self.session.answer(self.number, on_ask(event) if on_ask else "yes")
                elif event["event"] != "done":
                    if on_event is not None:
                        on_event(event)
                elif "error" in event:
                    hint = event.get("hint", "")
                    raise Failed(event["error"], where=self.session.node, hint=hint)
                else:
                    return event
        finally:
            self.session.forget(self.number)


class Session:
    """One agent on one node.

    Args:
        node: its name, for errors.
        channel: a fresh connection on which the agent's command was started.
        as_root: whether the agent runs as root there.
        root: where the node's file system begins; "/" but in tests.
        prelude: bytes before all else (the sudo password's line).
        explain: turns what was said on standard error by an agent that never spoke into an error.
    """

    def __init__(
        self,
        node: str,
        channel: Channel,
        *,
        as_root: bool = True,
        root: str = "/",
        prelude: bytes = b"",
        explain: Callable[[str, int | None], SparkClusterError | None] = lambda _said, _status: (
            None
        ),
    ) -> None:
        self.node = node
        self._channel = channel
        self._as_root = as_root
        self._root = root
        self._prelude = prelude
        self._explain = explain
        self._numbers = itertools.count(1)
        self._queues: dict[int, queue.Queue[dict[str, Any] | SparkClusterError]] = {}
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self._error: SparkClusterError | None = None
        self._spoken = False
        self._closing = False

    def submit(self, op: str, **what: Any) -> Pending:
        """Send a request without waiting, so that several share one turn of the network."""
        pending = Pending(self, next(self._numbers))
        self._queues[pending.number] = pending.mailbox
        self._send({"op": op, "req": pending.number, **what})
        return pending

    def request(
        self, op: str, on_event: OnEvent | None = None, blobs: Blobs | None = None, **what: Any
    ) -> dict[str, Any]:
        """Ask the agent and wait for its reply; see `Pending.wait`.

        Args:
            op: an operation of agent/operations.py.
        """
        return self.submit(op, **what).wait(on_event, blobs)

    def run(
        self,
        argv: list[str],
        *,
        stdin: str = "",
        timeout: float = 60.0,
        user: str | None = None,
    ) -> Output:
        """Run one command on the node and wait (`timeout` seconds)."""
        reply = self.request("run", argv=argv, stdin=stdin, timeout=timeout, user=user)
        return Output(reply["status"], reply["stdout"], reply["stderr"])

    def http(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        timeout: float = 10.0,
    ) -> Answer:
        """One HTTP request made by the node; what is in `headers` stays inside the channel."""
        reply = self.request(
            "http",
            url=url,
            method=method,
            headers=dict(headers or {}),
            body=body,
            timeout=timeout,
        )
        return Answer(reply["status"], reply["body"], reply.get("reason", ""))

    def close(self) -> None:
        """End the conversation; the agent finishes what must be finished and goes."""
        self._closing = True
        self._channel.close()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout=5)

    def give(self, number: int, sha256: str, data: bytes) -> None:
        """Send the content that request `number` asked for."""
        head = frames.pack({"op": "blob", "req": number, "sha256": sha256})
        with self._lock, contextlib.suppress(OSError, EOFError):  # the reader tells why
            self._channel.send(head + frames.pack(data))

    def answer(self, number: int, text: str) -> None:
        """Send the answer to what request `number` asked."""
        self._send({"op": "answer", "req": number, "answer": text})

    @property
    def at_work(self) -> bool:
        """Whether the agent has requests that are not answered yet."""
        return bool(self._queues)

    def forget(self, number: int) -> None:
        """Nobody waits for request `number` any more."""
        self._queues.pop(number, None)

    # -- inside ----------------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        data = frames.pack(message)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._reader is None:
                opening = payload.opening(data, root=self._root, as_root=self._as_root)
                data = self._prelude + opening
                self._prelude = b""
                reader = threading.Thread(
                    target=self._read, name=f"session {self.node}", daemon=True
                )
                reader.start()
                self._reader = reader  # started: `close` may come from another thread
            with contextlib.suppress(OSError, EOFError):  # the reader knows why, and tells all
                self._channel.send(data)

    def _read(self) -> None:
        buffer = _Buffer()
        heard = time.monotonic()
        while True:
            try:
                data = self._channel.receive(0.5)
            except TimeoutError:
                error = self._silence(time.monotonic() - heard)
                if error is not None:
                    self._end(error)
                    return
                continue
            except (OSError, EOFError) as fault:
                self._end(self._lost(str(fault) or "the connection was cut"))
                return
            if not data:
                self._end(self._ended())
                return
            heard = time.monotonic()
            try:
                for event in buffer.feed(data):
                    self._dispatch(event)
                    if self._error is not None:
                        return
            except (OSError, EOFError):  # while answering
                self._end(self._ended())
                return
            except ValueError as fault:
                self._end(self._lost(f"what came is not the agent's protocol ({fault})"))
                return

    def _dispatch(self, event: dict[str, Any]) -> None:
        self._spoken = True
        kind = event.get("event")
        if kind == "need_code":
            with self._lock:
                self._channel.send(frames.pack(payload.code()))
        elif kind == "alive":
            with self._lock:
                self._channel.send(frames.pack({"op": "alive"}))
        elif kind in ("too_old", "no_room"):
            self._end(self._unfit(event))
        else:
            mailbox = self._queues.get(event.get("req", 0))
            if mailbox is not None:
                mailbox.put(event)

    def _silence(self, seconds: float) -> SparkClusterError | None:
        if not self._spoken:
            error = self._explain(self._channel.said(), None)
            if error is None and seconds > START_WITHIN:
                error = self._lost(f"no word from the agent after {START_WITHIN:g} s")
            return error
        if seconds > LOST_AFTER and self._queues:
            return self._lost(f"no sign of life for {seconds:.0f} s")
        return None

    def _ended(self) -> SparkClusterError:
        status = None if self._spoken else self._channel.status()
        said = self._channel.said()  # after the status: by then all has come
        error = None if self._spoken else self._explain(said, status)
        tail = said.strip().splitlines()[-1:] or ["the connection was cut"]
        return error or self._lost(tail[0])

    def _lost(self, why: str) -> Unreachable:
        return Unreachable(
            f"the connection was lost: {why}",
            where=self.node,
            hint="nothing is half-written there; run the same command again to go on",
        )

    def _unfit(self, event: dict[str, Any]) -> SparkClusterError:
        if event["event"] == "too_old":
            return Failed(
                f"Python {event['python']} is too old for the agent",
                where=self.node,
                hint="install Python 3.10 or newer there",
            )
        return Failed(f"the agent cannot be kept there: {event['error']}", where=self.node)

    def _end(self, error: SparkClusterError) -> None:
        self._error = error
        for mailbox in list(self._queues.values()):
            mailbox.put(error)
        if not self._closing:
            self._channel.close()


class _Buffer:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        self._data += data
        events = []
        while len(self._data) >= 4:
            size = int.from_bytes(self._data[:4], "big")
            if size > frames.LIMIT:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._data) < 4 + size:
                break
            event = frames.read(io.BytesIO(bytes(self._data[: 4 + size])))
            if event is not None:
                events.append(event)
            del self._data[: 4 + size]
        return events
