"""The agent's loop: requests in, events out, several at once, gone when the laptop is."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

from spark_cluster.agent import frames
from spark_cluster.agent.masking import mask, secrets_in
from spark_cluster.agent.operations import Laptop, Node, carry_out
from spark_cluster.resources.base import Blob, ResourceError

T = TypeVar("T")

ALIVE_EVERY = 5.0
"""Seconds of silence after which the agent says that it lives."""

GONE_AFTER = 30.0
"""Seconds without a word from the laptop (which answers each sign of life): it is gone."""

BATCH = 0.05
"""Seconds that small events may wait for company, so that fifty `ok` are one packet."""


class Writer:
    """Frames out, from any thread; small events wait a moment for company."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._sent = time.monotonic()
        self.broken = threading.Event()
        self.secrets: set[str] = set()

    def send(self, message: dict[str, Any], *, now: bool = True, masked: bool = True) -> None:
        """Write a frame; with `now=False` it may wait up to BATCH seconds."""
        with self._lock:
            self._waiting.append(frames.pack(mask(message, self.secrets) if masked else message))
            if now or time.monotonic() - self._sent > BATCH:
                self._flush()

    def idle(self) -> float:
        """Seconds since something was sent."""
        return time.monotonic() - self._sent

    def _flush(self) -> None:
        data = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        self._sent = time.monotonic()
        try:
            while data:
                data = data[os.write(self._handle, data) :]
        except OSError:
            self.broken.set()


class Agent:
    """One agent: a reader (the caller's thread), a thread a request, a sign of life."""

    def __init__(self, stream: frames.Reader, handle: int, root: Path) -> None:
        self.stream = stream
        self.writer = Writer(handle)
        self.node = Node(root)
        self.heard = time.monotonic()
        self._workers: list[threading.Thread] = []
        self._blobs: dict[tuple[int, str], queue.Queue[bytes]] = {}
        self._answers: dict[int, queue.Queue[str]] = {}

    def serve(self, first: list[dict[str, Any]]) -> None:
        """Serve until the stream ends; what must finish (apt) is waited for."""
        threading.Thread(target=self._stay_alive, daemon=True).start()
        try:
            for message in first:
                self._take(message)
            while (request := frames.read(self.stream)) is not None:
                self.heard = time.monotonic()
                self._take(request)
        except (OSError, ValueError):
            pass  # a torn stream ends the agent as an ended one does
        self.node.processes.cancel()
        for worker in self._workers:
            worker.join()
        self.node.lock.release()

    def _take(self, message: dict[str, Any]) -> None:
        op = message.get("op")
        if op == "alive":
            return
        if op == "blob":
            data = frames.read_raw(self.stream) or b""
            waiting = self._blobs.get((message.get("req", 0), message.get("sha256", "")))
            if waiting is not None:
                waiting.put(data)
            return
        if op == "answer":
            asking = self._answers.get(message.get("req", 0))
            if asking is not None:
                asking.put(str(message.get("answer")))
            return
        self._workers = [w for w in self._workers if w.is_alive()]
        worker = threading.Thread(target=self._answer, args=(message,))
        self._workers.append(worker)
        worker.start()

    def _answer(self, request: dict[str, Any]) -> None:
        number = request.get("req", 0)
        self.writer.secrets.update(secrets_in(request))

        def emit(event: dict[str, Any]) -> None:
            quiet = event.get("event") == "result" and event.get("verdict") == "ok"
            self.writer.send({"req": number, **event}, now=not quiet)

        def fetch(blob: Blob) -> bytes:
            waiting = self._blobs.setdefault((number, blob.sha256), queue.Queue())
            emit({"event": "need", "sha256": blob.sha256})
            return self._wait(waiting)

        def ask(question: dict[str, Any]) -> str:
            waiting = self._answers.setdefault(number, queue.Queue())
            emit({"event": "ask", **question})
            return self._wait(waiting)

        laptop = Laptop(emit, fetch, ask)
        reply = {"req": number, "event": "done", **carry_out(self.node, request, laptop)}
        # Facts and answers are for the program, not for show: masked, a short secret would damage
        # them.
        shown = request.get("op") not in ("gather", "http") or "error" in reply
        self.writer.send(reply, masked=shown)

    def _wait(self, waiting: queue.Queue[T]) -> T:
        """What the laptop sends."""
        while True:
            try:
                return waiting.get(timeout=1.0)
            except queue.Empty:
                if self.node.processes.cancelled.is_set():
                    raise ResourceError("the laptop is gone") from None

    def asks_for_life(self) -> bool:
        """Whether a sign of life is due, or has to be asked for: who only listens to a stream of
        events, without a pause of seconds in it, says nothing by himself."""
        return max(self.writer.idle(), time.monotonic() - self.heard) >= ALIVE_EVERY

    def _stay_alive(self) -> None:
        while True:
            time.sleep(1.0)
            if self.asks_for_life():
                self.writer.send({"event": "alive"})
            if self.writer.broken.is_set() or time.monotonic() - self.heard > GONE_AFTER:
                self.node.processes.cancel()
                for worker in self._workers:
                    worker.join()
                os._exit(1)


def main(stream: frames.Reader, first: list[dict[str, Any]], root: str = "/") -> None:
    """Serve on standard input and a private copy of standard output.

    Whatever else in this process writes to standard output goes to standard error, so that it
    cannot be taken for the protocol.
    """
    gc.freeze()  # what is imported by now stays
    gc.enable()
    handle = os.dup(1)
    os.dup2(2, 1)
    os.umask(0o022)
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
    Agent(stream, handle, Path(root)).serve(first)
