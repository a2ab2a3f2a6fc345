"""A conversation with one node's agent: requests from any thread, events to whoever asked."""

from __future__ import annotations

import base64
import io
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import TIMEOUT_MAX, Lock, Thread, current_thread
from typing import Any

from spark_cluster.agent import frames
from spark_cluster.agent.messages import (
    OF_AGENT,
    Shape,
    check_event,
    check_reply,
    limit_of,
    longest_of,
    reply_to,
)
from spark_cluster.errors import Failed, SparkClusterError, Unreachable
from spark_cluster.runner.wire import SLOWEST, Channel, TakesNothing, code, opening

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

    @property
    def said(self) -> str:
        """Both outputs in one line."""
        return " ".join((self.stdout + " " + self.stderr).split())


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
    mailbox: Queue[tuple[dict[str, Any] | SparkClusterError, int]] = field(
        default_factory=Queue, init=False
    )
    """What has come, each with its bytes."""
    _came: int = field(default=0, init=False)
    """Bytes so far; written by the reader's thread only."""
    _read: int = field(default=0, init=False)
    """Bytes of what was taken out; written by the thread that waits only."""
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
            event, size = self.mailbox.get(timeout=min(left, TIMEOUT_MAX))
        except Empty:
            slow = "its answer comes too slowly" if self.session.is_partial else ""
            raise Failed(
                f"`{self.op}` got no answer for {self.limit:.0f} s, although the agent is "
                f"alive: {slow or 'something on the node hangs'}",
                where=self.session.node,
                hint="look there for processes in uninterruptible sleep (`ps axl`, state D) "
                "and at `journalctl -k`; a reboot may be all that helps",
            ) from None
        self._read += size
        if isinstance(event, SparkClusterError):
            raise event
        return event

    def put(self, event: dict[str, Any], size: int) -> None:
        """Keep a message of `size` bytes until it is waited for.

        Raises:
            ValueError: what nobody has read fills the memory.
        """
        self._came += size
        if self.mailbox.qsize() >= UNREAD_MESSAGES or self._came - self._read > UNREAD_BYTES:
            raise ValueError(
                f"messages for `{self.op}` come without end, faster than they are read"
            )
        self.mailbox.put((event, size))

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


UNREAD_MESSAGES, UNREAD_BYTES = 100_000, 2 * frames.LIMIT
"""Of a request at most that have come and that nobody has read; agents wait after a few MiB."""

LOST_AFTER = 15.0
"""Seconds of silence (the agent gives a sign of life every 5) after which the node is lost."""

QUOTED = 200
"""Characters of a login shell's text that an error quotes."""

START_WITHIN = 30.0
"""Seconds an agent may take to say its first word."""

FRAME_S = 30.0
"""Seconds that a frame may take to come, whatever its size."""


@dataclass(eq=False)
class Session:
    """A session with the agent on one node: frames to and from it, until the first reason to end.

    It is safe to use from several threads.

    Args:
        node: its name, for errors.
        channel: a fresh connection on which the agent's command was started.
        as_root: whether the agent runs as root there.
        root: where the node's file system begins; "/" but in tests.
        password: what sudo may ask for. It alone is sent until the agent has said its first word:
            sudo would take what comes after it for a second and a third try.
        explain: turns what was said on standard error by an agent that never spoke into an error.
    """

    node: str
    _channel: Channel
    _: KW_ONLY
    as_root: bool = True
    root: str = "/"
    password: str | None = field(default=None, repr=False)
    explain: Callable[[str, int | None], SparkClusterError | None] = lambda _said, _status: None
    _held: list[bytes] | None = field(default=None, init=False)
    """What waits for sudo to have taken the password; None when nothing has to."""
    _lock: Lock = field(default_factory=Lock, init=False)
    """Held while something is sent, which a node may make long."""
    _reader: Thread | None = field(default=None, init=False)
    _reasons: list[SparkClusterError] = field(default_factory=list, init=False)
    """To end, of which the first one counts."""
    _spoken: bool = field(default=False, init=False)
    _code_was_sent: bool = field(default=False, init=False)
    _closing: bool = field(default=False, init=False)
    _data: bytearray = field(default_factory=bytearray, init=False)
    _head: bytes = field(default=b"", init=False)
    """What the first message began with; text, where a login shell has printed it."""
    _taken: int = field(default=0, init=False)
    """Bytes of the current frame that were read from `_data`."""
    _begun: float = field(default=0.0, init=False)
    """When the current frame began."""
    _heard: float = field(default=0.0, init=False)
    """When anything came last."""
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
        pending.put(event, self._taken)

    @property
    def is_partial(self) -> bool:
        """True if a message has been received only in part."""
        return bool(self._taken or self._data)

    # -- out -------------------------------------------------------------------------------------

    def pack(self, message: dict[str, Any]) -> bytes:
        """Encode a message.

        Raises:
            Failed: it is longer than a frame may be.
        """
        try:
            return frames.pack(message)
        except frames.FrameTooLong as error:
            raise Failed(
                f"`{message['op']}` is too large to be sent: {error}", where=self.node
            ) from None

    def send(self, data: bytes) -> None:
        """Send frames; the first ones start the agent.

        Raises:
            SparkClusterError: why the conversation is over.
        """
        with self._lock:
            if self._reasons:
                raise self._reasons[0]
            if self._reader is None:
                data = opening(data, root=self.root, as_root=self.as_root)
                if self.password is not None:
                    self._held, data = [data], self.password.encode() + b"\n"
                    self.password = None
                name = f"session {self.node}"
                reader = Thread(
                    target=copy_context().run, args=(self._read,), name=name, daemon=True
                )
                reader.start()
                self._reader = reader  # started: `close` may come from another thread
            elif self._held is not None:
                self._held.append(data)
                return
            self._put(data)

    def put(self, data: bytes) -> None:
        """Send frames, if that can be; when the connection is gone, the reader tells why."""
        with self._lock:
            self._put(data)

    def _put(self, data: bytes) -> None:
        try:
            self._channel.send(data)
        except TakesNothing as fault:
            self.end(self._lost(str(fault)))
        except (OSError, EOFError):
            return

    # -- in --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take what comes until the conversation is over."""
        self._heard = time.monotonic()
        try:
            while True:
                self._taken, self._begun = 0, time.monotonic()
                event = frames.read(self) or {}
                check_event(event)
                self._spoken = True
                if event["event"] in OF_AGENT:
                    self._answer(event)
                else:
                    self.take(event)
        except SparkClusterError as error:
            why = self.end(error)
        except ValueError as fault:
            why = self.refuse(self._printed() or str(fault))
        except Exception as fault:  # noqa: BLE001  (without a reader every request would wait)
            why = self.refuse(f"{type(fault).__name__}: {fault}")
        for pending in list(self._pending.values()):
            pending.mailbox.put((why, 0))

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, for `frames.read`.

        Raises:
            SparkClusterError: why no more will come.
        """
        while len(self._data) < size:
            self._receive()
            if len(self._data) < size:
                self._must_go_on(size)
        data = bytes(self._data[:size])
        del self._data[:size]
        self._head = self._head or data
        self._taken += size
        return data

    def _printed(self) -> str:
        """Return what came in place of the first message, where it is a line of text."""
        came = (self._head + self._data[:QUOTED]).partition(b"\0")[0].strip()
        if self._spoken or not came or not self._head[:2].isascii():
            return ""
        line = came.decode(errors="replace").splitlines()[0][:QUOTED]
        return f"the login shell printed {line!r}" if line.isprintable() else ""

    def _receive(self) -> None:
        """Take what comes, for at most half a second."""
        try:
            data = self._channel.receive(0.5)
        except TimeoutError:
            return
        except (OSError, EOFError) as fault:
            raise self._lost(str(fault) or "the connection was cut") from None
        if not data:
            raise self._cut()
        self._heard = time.monotonic()
        if not self.is_partial:
            self._begun = self._heard
        self._data += data

    def _must_go_on(self, size: int) -> None:
        """Raise the error of an agent that is silent, or too slow with `size` bytes."""
        now = time.monotonic()
        silent = now - self._heard
        if not self._spoken:
            if error := self.explain(self._channel.stderr(), None):
                raise error
            if silent > START_WITHIN:
                raise self._lost(f"no message from the agent after {START_WITHIN:g} s")
        elif silent > LOST_AFTER and self.at_work:
            raise self._lost(f"no sign of life for {silent:.0f} s")
        got, seconds = self._taken + len(self._data), now - self._begun
        if got and got < (seconds - FRAME_S) * SLOWEST:
            whole = self._taken + size if self._taken else "unknown size"
            raise self._lost(f"{got} bytes of a message of {whole} have come in {seconds:.0f} s")

    def _answer(self, event: dict[str, Any]) -> None:
        """Do what an event of the agent itself asks for; raise the error that it is."""
        kind = event["event"]
        if kind == "ready":
            with self._lock:
                held, self._held = b"".join(self._held or []), None
                self._put(held)
        elif kind == "need_code":
            if self._code_was_sent:
                raise ValueError("it asks for the code again")
            self._code_was_sent = True
            self.put(frames.pack(code()))
        elif kind == "alive":
            self.put(frames.pack({"op": "alive"}))
        elif kind == "too_old":
            raise Failed(
                f"Python {event['python']} is too old for the agent",
                where=self.node,
                hint="install Python 3.10 or newer there",
            )
        else:
            raise Failed(
                f"the agent cannot be stored there: {event['error']}",
                where=self.node,
                hint="its disk may be full (df -h), out of inodes (df -i) or read-only (mount)",
            )

    # -- the end ---------------------------------------------------------------------------------

    def end(self, error: SparkClusterError) -> SparkClusterError:
        """End the conversation; return why, which is the first reason that there was."""
        self._reasons.append(error)
        if error is self._reasons[0] and not self._closing:
            self._channel.close()
        return self._reasons[0]

    def refuse(self, fault: str) -> SparkClusterError:
        """End it, since what the node has sent cannot be used; return the error.

        Args:
            fault: what was found, and what was expected.
        """
        return self.end(
            Failed(
                f"what it sent is not the agent's protocol: {fault}",
                where=self.node,
                hint="the connection was ended; look at what the login shell prints there "
                "(`ssh NODE true` must print nothing), and whether the node can be trusted",
            )
        )

    def close(self) -> None:
        """End the conversation; the agent finishes what must be finished and goes."""
        self._closing = True
        self._channel.close()
        if self._reader is not None and self._reader is not current_thread():
            self._reader.join(timeout=5)

    def _cut(self) -> SparkClusterError:
        status = None if self._spoken else self._channel.status()
        output = self._channel.stderr()  # after the status: by then all has come
        error = None if self._spoken else self.explain(output, status)
        tail = output.strip().splitlines()[-1:] or ["the connection was cut"]
        return error or self._lost(tail[0])

    def _lost(self, why: str) -> Unreachable:
        return Unreachable(
            f"the connection was lost: {why}",
            where=self.node,
            hint="no file is half-written there; run the same command again to continue",
        )


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
