"""A conversation with one node's agent: requests from any thread, events to whoever asked."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.agent import frames
from spark_cluster.errors import Failed, SparkClusterError, Unreachable
from spark_cluster.runner import payload
from spark_cluster.runner.channel import Channel, TakesNothing
from spark_cluster.runner.frame_buffer import FrameBuffer, pieces
from spark_cluster.runner.messages import check_event, check_reply, reply_to
from spark_cluster.runner.pending import Blobs, OnEvent, Pending, limit_of

LOST_AFTER = 15.0
"""Seconds of silence (the agent gives a sign of life every 5) after which the node is lost."""

START_WITHIN = 30.0
"""Seconds an agent may take to say its first word."""


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


class Session:
    """A session with the agent on one node.

    Args:
        node: its name, for errors.
        channel: a fresh connection on which the agent's command was started.
        as_root: whether the agent runs as root there.
        root: where the node's file system begins; "/" but in tests.
        password: what sudo may ask for. It alone is sent until the agent has said its first word:
            sudo would take what comes after it for a second and a third try.
        explain: turns what was said on standard error by an agent that never spoke into an error.
    """

    def __init__(
        self,
        node: str,
        channel: Channel,
        *,
        as_root: bool = True,
        root: str = "/",
        password: str | None = None,
        explain: Callable[[str, int | None], SparkClusterError | None] = lambda _said, _status: (
            None
        ),
    ) -> None:
        self.node = node
        self._channel = channel
        self._as_root = as_root
        self._root = root
        self._password = password
        self._held: list[bytes] | None = None
        """What waits for sudo to have taken the password; None when nothing has to."""
        self._explain = explain
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._lock = threading.Lock()
        """Held while something is sent, which a node may make long."""
        self._ending = threading.Lock()
        self._reader: threading.Thread | None = None
        self._error: SparkClusterError | None = None
        self._spoken = False
        self._sent_code: set[str] = set()
        self._closing = False
        self._buffer = FrameBuffer()

    def submit(self, op: str, step_s: float = 0.0, /, **what: Any) -> Pending:
        """Send a request without waiting, so that several share one turn of the network.

        Args:
            step_s: the longest time that one step of it may take, seconds; more than usual.
        """
        limit = limit_of(op, what.get("timeout"), step_s)
        pending = Pending(self, next(self._numbers), op, limit, reply_to(op, what))
        data = self._packed({"op": op, "req": pending.number, **what})
        self._pending[pending.number] = pending
        self._send(data)
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

    def close(self) -> None:
        """End the conversation; the agent finishes what must be finished and goes."""
        self._closing = True
        self._channel.close()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout=5)

    def give(self, number: int, need: Mapping[str, Any], content: bytes | Path) -> None:
        """Send what request `number` asked for of a content, piece by piece.

        Where the content has less than that, an empty piece says so.
        """
        head = frames.pack({"op": "blob", "req": number, "sha256": need["sha256"]})
        for piece in pieces(content, need["from"], need["size"]):
            self._put(head + frames.pack(piece))

    def answer(self, number: int, text: str) -> None:
        """Send the answer to what request `number` asked."""
        self._send(self._packed({"op": "answer", "req": number, "answer": text}))

    def tell_shown(self, number: int, size: int) -> None:
        """Tell that so many characters of request `number`'s stream were shown."""
        self._put(frames.pack({"op": "taken", "req": number, "size": size}))

    @property
    def receiving(self) -> bool:
        """True if a message has been received only in part."""
        return self._buffer.is_partial

    @property
    def at_work(self) -> bool:
        """True if the agent has requests that are not answered yet."""
        return bool(self._pending)

    def forget(self, number: int) -> None:
        """Forget request `number`, whose reply is no longer awaited."""
        self._pending.pop(number, None)

    def refuse(self, fault: str) -> SparkClusterError:
        """End the session, since what its node has sent cannot be used; return the error.

        Args:
            fault: what was found, and what was expected.
        """
        self._end(self._nonsense(fault))
        return self._error or self._nonsense(fault)

    # -- inside ----------------------------------------------------------------------------------

    def _packed(self, message: dict[str, Any]) -> bytes:
        try:
            return frames.pack(message)
        except frames.TooLong as error:
            raise Failed(
                f"`{message['op']}` is too large to be sent: {error}", where=self.node
            ) from None

    def _send(self, data: bytes) -> None:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._reader is None:
                wait = self._password is not None
                opening = payload.opening(data, root=self._root, as_root=self._as_root)
                data = b"" if self._password is None else self._password.encode() + b"\n"
                if wait:
                    self._held = [opening]
                else:
                    data += opening
                self._password = None
                reader = threading.Thread(
                    target=self._read, name=f"session {self.node}", daemon=True
                )
                reader.start()
                self._reader = reader  # started: `close` may come from another thread
            elif self._held is not None:
                self._held.append(data)
                return
            self._try_to_send(data)

    def _put(self, data: bytes) -> None:
        with self._lock:
            self._try_to_send(data)

    def _try_to_send(self, data: bytes) -> None:
        """Send it, if that can be; when the connection is gone, the reader tells why."""
        try:
            self._channel.send(data)
        except TakesNothing as fault:
            self._end(self._lost(str(fault)))
        except (OSError, EOFError):
            return

    def _read(self) -> None:
        try:
            error = self._listen()
        except (OSError, EOFError):  # while answering
            error = self._ended()
        except ValueError as fault:
            error = self._nonsense(str(fault))
        except Exception as fault:  # noqa: BLE001  (without a reader every request would wait)
            error = self._nonsense(f"{type(fault).__name__}: {fault}")
        self._end(error)

    def _listen(self) -> SparkClusterError:
        """Take what comes until the session is over, and return why it is.

        Raises:
            ValueError: something that no agent sends.
            OSError, EOFError: what it asks for cannot be sent.
        """
        heard = time.monotonic()
        while True:
            data = None
            try:
                data = self._channel.receive(0.5)
            except TimeoutError:
                pass
            except (OSError, EOFError) as fault:
                return self._lost(str(fault) or "the connection was cut")
            if data == b"":
                return self._ended()
            if data:
                heard = time.monotonic()
                for event in self._buffer.feed(data):
                    check_event(event)
                    error = self._dispatch(event)
                    if error is not None:
                        return error
            error = self._silence(time.monotonic() - heard)
            if error is not None:
                return error
            if slow := self._buffer.why_too_slow():
                return self._lost(slow)

    def _dispatch(self, event: dict[str, Any]) -> SparkClusterError | None:
        """Do what an event asks for; return why it is the last one, if it is."""
        self._spoken = True
        kind = event["event"]
        if kind == "ready":
            with self._lock:
                held, self._held = b"".join(self._held or []), None
                self._channel.send(held)
        elif kind == "need_code":
            part = event.get("part", "")
            if part in self._sent_code or part not in payload.PARTS:
                raise ValueError(f"it asks for the code {part!r} again, or there is none")
            self._sent_code.add(part)
            with self._lock:
                self._channel.send(payload.sent(part))
        elif kind == "alive":
            with self._lock:
                self._channel.send(frames.pack({"op": "alive"}))
        elif kind in ("too_old", "no_room"):
            return self._unfit(event)
        elif (pending := self._pending.get(event["req"])) is not None:
            if kind == "done":
                check_reply(event, pending.op, pending.reply)
            pending.mailbox.put(event)
        return None

    def _silence(self, seconds: float) -> SparkClusterError | None:
        if not self._spoken:
            error = self._explain(self._channel.stderr(), None)
            if error is None and seconds > START_WITHIN:
                error = self._lost(f"no message from the agent after {START_WITHIN:g} s")
            return error
        if seconds > LOST_AFTER and self._pending:
            return self._lost(f"no sign of life for {seconds:.0f} s")
        return None

    def _ended(self) -> SparkClusterError:
        status = None if self._spoken else self._channel.status()
        output = self._channel.stderr()  # after the status: by then all has come
        error = None if self._spoken else self._explain(output, status)
        tail = output.strip().splitlines()[-1:] or ["the connection was cut"]
        return error or self._lost(tail[0])

    def _lost(self, why: str) -> Unreachable:
        return Unreachable(
            f"the connection was lost: {why}",
            where=self.node,
            hint="no file is half-written there; run the same command again to continue",
        )

    def _nonsense(self, fault: str) -> Failed:
        return Failed(
            f"what it sent is not the agent's protocol: {fault}",
            where=self.node,
            hint="the connection was ended; look at what the login shell prints there "
            "(`ssh NODE true` must print nothing), and whether the node can be trusted",
        )

    def _unfit(self, event: dict[str, Any]) -> SparkClusterError:
        if event["event"] == "too_old":
            return Failed(
                f"Python {event['python']} is too old for the agent",
                where=self.node,
                hint="install Python 3.10 or newer there",
            )
        return Failed(f"the agent cannot be stored there: {event['error']}", where=self.node)

    def _end(self, error: SparkClusterError) -> None:
        """End the session for the first reason that there is."""
        with self._ending:
            if self._error is not None:
                return
            self._error = error
        for pending in list(self._pending.values()):
            pending.mailbox.put(error)
        if not self._closing:
            self._channel.close()
