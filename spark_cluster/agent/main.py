"""The agent's loop: requests in, events out, several at once; it ends when the laptop is gone."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import queue
import re
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from spark_cluster.agent import frames
from spark_cluster.agent.operations import AgentNode, Laptop, carry_out
from spark_cluster.node import own_program, paths
from spark_cluster.node.values import Blob, ResourceError, mask, secrets_in

# The agent's own code on this node: parts that come later, and the folders of other versions.

_VERSION = re.compile(r"[0-9a-f]{64}(?:\.([0-9]+)(?:\.damaged)?)?")
"""Name of a version's folder, or of what an agent with this number of a process has left."""


def forget_others(folder: str, root: str) -> None:
    """Remove older versions of the code, and what was left of an agent that was killed.

    The last version stays, as do those that transient units and other agents run from.

    Args:
        folder: of the code of this version; the others are beside it.
        root: where the node's file system begins; "/" but in tests.
    """
    units = Path(root, paths.TRANSIENT_UNITS.lstrip("/")).glob(own_program.UNITS)
    running = b"".join(unit.read_bytes() for unit in units)
    versions = []
    for path in Path(folder).parent.iterdir():
        found = _VERSION.fullmatch(path.name)
        if found and found[1]:
            if not Path("/proc", found[1]).exists():
                shutil.rmtree(path, ignore_errors=True)
        elif found and str(path) != folder and path.name.encode() not in running:
            with contextlib.suppress(FileNotFoundError):  # another agent was quicker
                versions.append((path.stat().st_mtime, path))
    for _, path in sorted(versions)[:-1]:
        with contextlib.suppress(OSError):  # an agent holds it (`bootstrap.hold`), or it is gone
            handle = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


T = TypeVar("T")

ALIVE_EVERY = 5.0
"""Seconds of silence after which the agent sends a heartbeat."""

GONE_AFTER = 30.0
"""Seconds without a word from the laptop (which answers each sign of life): it is gone."""

LOOK_EVERY = 1.0
"""Seconds between two looks whether the laptop is there."""

LEAVE_S = 8.0
"""Seconds that the end may take, what must finish aside: more than a command needs to be ended
(TERM_GRACE and KILL_GRACE of node/processes.py). With GONE_AFTER and LOOK_EVERY under 40."""

BATCH = 0.05
"""Seconds that small events may wait for company, so that fifty `ok` are one packet."""

ALWAYS_FITS = 4096
"""Bytes that can be written to a pipe or socket which has room at all (PIPE_BUF, pipe(7))."""

ROOM_MS = 500
"""Milliseconds after which who waits for room looks whether that is still wanted."""

PART = 64 * 1024
"""Bytes from the laptop that are a sign of life, also in the middle of a frame."""

ASKED = 4 * frames.PIECE
"""Bytes of a content that are asked for at once."""

AHEAD = 2 * ASKED
"""Bytes of a content that may be on their way or wait here."""


class Writer:
    """Frames out, from any thread; small events wait a moment for company.

    Who writes waits for the laptop to read, which may never be: `broken` ends that wait.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._sent = time.monotonic()
        self._room = select.poll()
        self._room.register(handle, select.POLLOUT)
        self.broken = threading.Event()
        self.secrets: set[str] = set()

    def send(self, message: dict[str, Any], *, now: bool = True, masked: bool = True) -> None:
        """Write a frame; with `now=False` it may wait up to BATCH seconds.

        Raises:
            frames.FrameTooLong: it is longer than a frame may be.
        """
        frame = frames.pack(mask(message, self.secrets) if masked else message)
        with self._lock:
            self._waiting.append(frame)
            if now or time.monotonic() - self._sent > BATCH:
                self._flush()

    def alive(self) -> None:
        """Give a sign of life, unless something is being written, which is one."""
        if self._lock.acquire(blocking=False):
            try:
                self._waiting.append(frames.pack({"event": "alive"}))
                self._flush()
            finally:
                self._lock.release()

    def idle(self) -> float:
        """Seconds since something was sent."""
        return time.monotonic() - self._sent

    def _flush(self) -> None:
        data = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        self._sent = time.monotonic()
        try:
            while data and not self.broken.is_set():
                if self._room.poll(ROOM_MS):
                    data = data[os.write(self._handle, data[:ALWAYS_FITS]) :]
        except OSError:
            self.broken.set()


class Agent:
    """An agent: a reader (the caller's thread), a thread for each request, a heartbeat."""

    def __init__(self, stream: frames.ByteStream, handle: int, root: Path) -> None:
        self.stream = stream
        self.writer = Writer(handle)
        self.node = AgentNode(root)
        self.heard = time.monotonic()
        self._workers: list[threading.Thread] = []
        self._pieces: dict[tuple[int, str], queue.Queue[bytes]] = {}
        self._answers: dict[int, queue.Queue[str]] = {}
        self._taken: dict[int, queue.Queue[int]] = {}

    def serve(self, first: list[dict[str, Any]]) -> None:
        """Serve until the stream ends; then `leave`. Only in the main thread, for the signals."""
        threading.Thread(target=self._stay_alive, daemon=True).start()
        with contextlib.suppress(OSError, ValueError):  # a torn stream ends it as an ended one does
            try:
                for message in first:
                    self._take(message)
                while (request := frames.read(self)) is not None:
                    self._take(request)
            finally:
                _defy_signals()  # in here: what a signal raises until then is suppressed
        self.leave()

    def read(self, size: int, /) -> bytes:
        """Return what the laptop sends, `size` bytes unless it ends; each part is a heartbeat."""
        data = bytearray()
        while len(data) < size:
            part = self.stream.read(min(size - len(data), PART))
            if not part:
                break
            self.heard = time.monotonic()
            data += part
        return bytes(data)

    def leave(self) -> None:
        """End what runs and free the node's lock, within LEAVE_S seconds; what must finish (apt) is
        waited for to its own limit."""
        self.writer.broken.set()
        self.node.processes.cancel()
        quiet = time.monotonic()
        while any(worker.is_alive() for worker in self._workers):
            if self.node.processes.finishing_until() > time.monotonic():
                quiet = time.monotonic()
            elif time.monotonic() - quiet > LEAVE_S:
                break
            time.sleep(0.01)
        self.node.processes.kill()
        self.node.lock.release()

    def _take(self, message: dict[str, Any]) -> None:
        op, number = message.get("op"), message.get("req", 0)
        if op == "alive":
            return
        if op == "blob":
            piece = frames.read_raw(self) or b""
            _put(self._pieces.get((number, message.get("sha256", ""))), piece)
        elif op == "answer":
            _put(self._answers.get(number), str(message.get("answer")))
        elif op == "taken":
            _put(self._taken.get(number), int(message.get("size", 0)))
        else:
            self._workers = [w for w in self._workers if w.is_alive()]
            worker = threading.Thread(target=self._answer, args=(message,), daemon=True)
            self._workers.append(worker)
            worker.start()

    def _answer(self, request: dict[str, Any]) -> None:
        number = request.get("req", 0)
        self.writer.secrets.update(secrets_in(request))
        reply = {"req": number, "event": "done", **carry_out(self.node, request, self._way(number))}
        # Facts and answers are for the program, not for show: masked, a short secret would damage
        # them.
        shown = request.get("op") not in ("gather", "http") or "error" in reply
        try:
            self.writer.send(reply, masked=shown)
        except frames.FrameTooLong as error:
            text = f"the answer is too long: {error}"
            self.writer.send({"req": number, "event": "done", "error": text, "hint": ""})

    def _way(self, number: int) -> Laptop:
        """The way back to who sent request `number`."""

        def emit(event: dict[str, Any]) -> None:
            quiet = event.get("event") == "result" and event.get("verdict") == "ok"
            try:
                self.writer.send({"req": number, **event}, now=not quiet)
            except frames.FrameTooLong as error:
                raise ResourceError(f"the message is too long: {error}") from None

        def fetch(blob: Blob) -> Iterator[bytes]:
            waiting = self._pieces.setdefault((number, blob.sha256), queue.Queue())
            asked = got = 0
            while got < blob.size:
                while asked < min(blob.size, got + AHEAD):
                    size = min(ASKED, blob.size - asked)
                    need = {"sha256": blob.sha256, "from": asked, "size": size}
                    emit({"event": "need", **need})
                    asked += size
                piece = self._wait(waiting)
                if not piece:
                    raise ResourceError(
                        f"the laptop has no more than {got} of {blob.size} bytes of a content",
                        "its file was changed meanwhile; run again",
                    )
                got += len(piece)
                yield piece

        def ask(question: dict[str, Any]) -> str:
            waiting = self._answers.setdefault(number, queue.Queue())
            emit({"event": "ask", **question})
            return self._wait(waiting)

        taken = self._taken.setdefault(number, queue.Queue())
        return Laptop(emit, fetch, ask, taken)

    def _wait(self, waiting: queue.Queue[T]) -> T:
        """Wait for what the laptop sends; it is alive, or `_stay_alive` ends everything."""
        while True:
            try:
                return waiting.get(timeout=1.0)
            except queue.Empty:
                if self.node.processes.cancelled.is_set():
                    raise ResourceError("the laptop is gone") from None

    def asks_for_life(self) -> bool:
        """Return whether a heartbeat is due or must be asked for: a client that only listens to a
        stream of events without a pause of seconds sends nothing by itself.
        """
        return max(self.writer.idle(), time.monotonic() - self.heard) >= ALIVE_EVERY

    def _stay_alive(self) -> None:
        """Nothing here may wait for the laptop, nor for a thread that does."""
        try:
            while not self.writer.broken.is_set() and time.monotonic() - self.heard <= GONE_AFTER:
                time.sleep(LOOK_EVERY)
                if self.asks_for_life():
                    self.writer.alive()
            self.leave()
        finally:
            os._exit(1)


def _put(waiting: queue.Queue[T] | None, value: T) -> None:
    """Hand it to who waits for it, if anybody does."""
    if waiting is not None:
        waiting.put(value)


def main(
    stream: frames.ByteStream, first: list[dict[str, Any]], root: str = "/", new: str = ""
) -> None:
    """Serve on standard input and a private copy of standard output.

    Args:
        new: folder of this code where it has just come; the folders of others are then removed.

    Whatever else in this process writes to standard output goes to standard error, so that it
    cannot be taken for the protocol.
    """
    gc.freeze()  # what is imported by now stays
    gc.enable()
    handle = os.dup(1)
    os.dup2(2, 1)
    os.umask(0o022)
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
    signal.signal(signal.SIGTERM, _ended)
    if new:
        forget_others(new, root)
    Agent(stream, handle, Path(root)).serve(first)
    os._exit(0)  # whatever thread still waits for something, no one waits for it


def _ended(_number: int, _frame: object) -> None:
    """End everything that the agent runs, when it is ended by a signal."""
    _defy_signals()
    raise OSError("ended by a signal")


def _defy_signals() -> None:
    """Let no signal interrupt the end of the agent, which ends all that it runs.

    By a handler, since what is ignored is ignored by the commands, too.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
