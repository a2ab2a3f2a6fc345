"""A conversation with one node's agent: requests from any thread, events to whoever asked."""

from __future__ import annotations

import base64
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from spark_cluster.agent import frames
from spark_cluster.agent.messages import Shape, check_reply, limit_of, longest_of, reply_to
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.runner.wire import Wire

OnEvent = Callable[[dict[str, Any]], None]
OnAsk = Callable[[dict[str, Any]], str]
Blobs = Mapping[str, bytes | Path]
"""Contents by SHA-256: themselves, or the file of the laptop that has them."""

ACKNOWLEDGED = 64 * 1024
"""Characters of streamed output after which the agent is told that they were shown."""


def carried_body(body: str | bytes | None) -> dict[str, Any]:
    """Return a request's body as a message carries it: bytes go as base64."""
    if isinstance(body, bytes):
        return {"body_base64": base64.b64encode(body).decode("ascii")}
    return {"body": body}


@dataclass(frozen=True)
class Output:
    """A command that ran on a node."""

    status: int
    stdout: str
    stderr: str
    left_out: int = 0
    """Bytes of its outputs that were too much to be kept."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer that a node got; `status` 0 and a `reason` when there was none.

    `certificate` is the SHA-256 (hex) of the server's, where one was asked for.
    """

    status: int
    body: str
    reason: str = ""
    certificate: str = ""


def printed(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return what each command of an answer of `gather` has printed; empty for one that is not
    there, or that was ended."""
    return {name: done["stdout"] if done else "" for name, done in answer["commands"].items()}


@dataclass(eq=False)
class Pending:
    """A request on its way.

    Args:
        limit: seconds without any word about this request after which it is waited for no longer;
            infinite for what has no end of its own.
        reply: the shape of its reply.
    """

    session: Session
    number: int
    op: str
    limit: float
    reply: Shape
    mailbox: Queue[dict[str, Any] | SparkClusterError] = field(default_factory=Queue, init=False)
    _shown: int = field(default=0, init=False)

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
                    answer = on_ask(event) if on_ask else "yes"
                    message = {"op": "answer", "req": self.number, "answer": answer}
                    self.session.send(self.session.pack(message))
                elif kind == "done":
                    if "error" in event:
                        node, hint = self.session.node, event.get("hint", "")
                        raise Failed(event["error"], where=node, hint=hint)
                    return event
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
                raise Empty
            event = self.mailbox.get(timeout=min(left, threading.TIMEOUT_MAX))
        except Empty:
            slow = "its answer comes too slowly" if self.session.is_partial else ""
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
        """Send the part of a content that the agent needs, piece by piece.

        Where the content has less than that, an empty piece says so.
        """
        content = blobs.get(need["sha256"])
        if content is None:
            raise self.session.refuse(f"it needs a content that `{self.op}` does not have")
        head = frames.pack({"op": "blob", "req": self.number, "sha256": need["sha256"]})
        left = need["size"]
        try:
            with (
                io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source
            ):
                source.seek(need["from"])
                while left > 0:
                    piece = source.read(min(left, frames.PIECE))
                    self.session.put(head + frames.pack(piece))
                    left = left - len(piece) if piece else 0
        except OSError:
            self.session.put(head + frames.pack(b""))

    def _acknowledge(self, event: dict[str, Any]) -> None:
        """Tell the agent what was shown of its stream, so that it sends more."""
        if event["event"] != "output":
            return
        self._shown += len(event["text"])
        if self._shown >= ACKNOWLEDGED:
            taken = {"op": "taken", "req": self.number, "size": self._shown}
            self.session.put(frames.pack(taken))
            self._shown = 0


@dataclass(eq=False)
class Session(Wire):
    """A session with the agent on one node: requests over its wire; see `Wire` for the arguments.

    It is safe to use from several threads.
    """

    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), init=False)
    _pending: dict[int, Pending] = field(default_factory=dict, init=False)

    def submit(self, op: str, step_s: float = 0.0, /, **what: Any) -> Pending:
        """Send a request without waiting, so that several share one turn of the network.

        Args:
            step_s: the longest time that one step of it may take, seconds; more than usual.
        """
        number = next(self._numbers)
        data = self.pack({"op": op, "req": number, **what})
        limit = limit_of(op, what.get("timeout"), step_s)
        pending = self._pending[number] = Pending(self, number, op, limit, reply_to(op, what))
        self.send(data)
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
        program: str = "",
    ) -> Output:
        """Run one command on the node and wait (`timeout` seconds).

        Args:
            program: a module of `node` with a `main`, which gets `argv`.
        """
        reply = self.request(
            "run", argv=argv, stdin=stdin, timeout=timeout, user=user, program=program
        )
        left_out = reply.get("left_out", 0)
        return Output(reply["status"], reply["stdout"], reply["stderr"], left_out)

    def http(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | bytes | None = None,
        timeout: float = 10.0,
        bearer_file: str = "",
        certificate: str | None = None,
    ) -> Answer:
        """Make one HTTP request from the node; what is in `headers` stays inside the channel.

        Args:
            bearer_file: a file on the node with a bearer token, which stays there.
            certificate: PEM file on the node; https takes exactly this one.
        """
        reply = self.request(
            "http",
            url=url,
            method=method,
            headers=dict(headers or {}),
            **carried_body(body),
            timeout=timeout,
            bearer_file=bearer_file,
            certificate=certificate,
        )
        fingerprint = reply.get("certificate", "")
        return Answer(reply["status"], reply["body"], reply.get("reason", ""), fingerprint)

    def read_file(self, path: str) -> str | None:
        """Return the text of a file of the node; None where it is not there."""
        found: str | None = self.request("gather", files={"text": path})["files"]["text"]
        return found

    def forget(self, number: int) -> None:
        """Forget request `number`, whose reply is no longer awaited."""
        self._pending.pop(number, None)

    @property
    def at_work(self) -> bool:
        """True if the agent has requests that are not answered yet."""
        return bool(self._pending)

    def take(self, event: dict[str, Any]) -> None:
        """Hand an event to its request. Raises ValueError for a reply of another form."""
        pending = self._pending.get(event["req"])
        if pending is None:
            return
        if event["event"] == "done":
            check_reply(event, pending.op, pending.reply)
        pending.mailbox.put(event)

    def ended(self, error: SparkClusterError) -> None:
        """Have every request fail."""
        for pending in list(self._pending.values()):
            pending.mailbox.put(error)


def ask_all(sessions: Mapping[str, Session], op: str, **what: Any) -> dict[str, dict[str, Any]]:
    """Ask nodes the same, all at once; node to its reply.

    Raises:
        Failed: a node could not do it.
        Unreachable: a node is lost.
    """
    return ask_each(sessions, op, dict.fromkeys(sessions, what))


def ask_each(
    sessions: Mapping[str, Session], op: str, asked: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Ask each node something of its own, all at once; node to its reply. As `ask_all`.

    Args:
        asked: node to what the operation takes.
    """
    waiting = {name: sessions[name].submit(op, **what) for name, what in asked.items()}
    return {name: pending.wait() for name, pending in waiting.items()}
