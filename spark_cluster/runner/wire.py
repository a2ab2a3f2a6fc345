"""The wire to one node's agent: how it starts, frames both ways, signs of life, why it ended."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field
from threading import Lock, Thread, current_thread
from typing import Any

from spark_cluster.agent import frames
from spark_cluster.agent.messages import OF_AGENT, check_event
from spark_cluster.errors import Failed, SparkClusterError, Unreachable
from spark_cluster.runner import payload
from spark_cluster.runner.channel import SLOWEST, Channel, TakesNothing

LOST_AFTER = 15.0
"""Seconds of silence (the agent gives a sign of life every 5) after which the node is lost."""

START_WITHIN = 30.0
"""Seconds an agent may take to say its first word."""

FRAME_S = 30.0
"""Seconds that a frame may take to come, whatever its size."""


@dataclass(eq=False)
class Wire(ABC):
    """Frames to and from an agent, until the first reason to end.

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
    _sent_code: set[str] = field(default_factory=set, init=False)
    _closing: bool = field(default=False, init=False)
    _data: bytearray = field(default_factory=bytearray, init=False)
    _taken: int = field(default=0, init=False)
    """Bytes of the current frame that were read from `_data`."""
    _begun: float = field(default=0.0, init=False)
    """When the current frame began."""
    _heard: float = field(default=0.0, init=False)
    """When anything came last."""

    @property
    @abstractmethod
    def at_work(self) -> bool:
        """True if the agent has requests that are not answered yet, so that silence means loss."""

    @abstractmethod
    def take(self, event: dict[str, Any]) -> None:
        """Take an event of a request. Raises ValueError for something that no agent sends."""

    @abstractmethod
    def ended(self, error: SparkClusterError) -> None:
        """Take note that the conversation is over, and why."""

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
                data = payload.opening(data, root=self.root, as_root=self.as_root)
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
            why = self.refuse(str(fault))
        except Exception as fault:  # noqa: BLE001  (without a reader every request would wait)
            why = self.refuse(f"{type(fault).__name__}: {fault}")
        self.ended(why)

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
        self._taken += size
        return data

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
            part = event.get("part", "")
            if part in self._sent_code or part not in payload.PARTS:
                raise ValueError(f"it asks for the code {part!r} again, or there is none")
            self._sent_code.add(part)
            self.put(payload.sent(part))
        elif kind == "alive":
            self.put(frames.pack({"op": "alive"}))
        elif kind == "too_old":
            raise Failed(
                f"Python {event['python']} is too old for the agent",
                where=self.node,
                hint="install Python 3.10 or newer there",
            )
        else:
            raise Failed(f"the agent cannot be stored there: {event['error']}", where=self.node)

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
