"""The worker in a transient unit: runs one command, writes its outputs and its status to files.

The agent that started it may be gone long before the end, so all is said in the unit's folder:
`work` (read once and removed: it may hold secrets), `begun`, `out`, `err`, `status`. The lock on
`lock` is held while it runs, so that whoever comes later can tell running from dead. The limit of
the work is kept here, with or without an agent; systemd's own, a little later, is the last resort.

An output on the disk is bounded, and its end is always there: it is written into two files by
turns, `NAME` and before it `NAME.before`, so that nothing of the end is lost when the older half
goes. Who watches reads it as it grows. Ages of moments survive clock steps, and reboots as well as
can be.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spark_cluster.node.output import Lines
from spark_cluster.node.processes import Running
from spark_cluster.node.values import ResourceError, boot_id, explain, unforeseen


def now() -> dict[str, Any]:
    """This moment, by the wall clock and by the monotonic clock.

    The monotonic clock counts from boot and is the same for all processes (clock_gettime(2)).
    """
    return {"time": time.time(), "monotonic": time.monotonic(), "boot": boot_id()}


def age(moment: Mapping[str, Any]) -> float:
    """Seconds since a moment of `now`.

    In the same boot by the monotonic clock; of an earlier boot only the wall's clock can tell, and
    what it tells of the future is 0.
    """
    if moment.get("boot") == boot_id() and "monotonic" in moment:
        return max(0.0, time.monotonic() - float(moment["monotonic"]))
    return max(0.0, time.time() - float(moment.get("time", 0.0)))


OUTPUT_ROOM = 64 * 1024 * 1024
"""Bytes of one output on the disk; of a longer one at least the last half of so much is there."""

RESULT_LIMIT = 4 * 1024 * 1024
"""Bytes of each output that are kept for the result: the last ones."""

BLOCK = 1024 * 1024
"""Bytes of an output that are read at once."""

TOLD_AT_ONCE = 16 * BLOCK
"""Bytes after which the watcher checks its limit again."""

UNWRITTEN_LIMIT = 64 * 1024
"""Bytes that wait for room on a full disk: the last ones."""


class OutputFile:
    """The writer of an output.

    Args:
        path: of its newer file.
        room: bytes that both files may take.
    """

    def __init__(self, path: Path, room: int = OUTPUT_ROOM) -> None:
        self._path = path
        self._room = room
        self._size = 0
        self._waiting = bytearray()
        self._handle = self._begun()

    def add(self, data: bytes) -> None:
        """Write what has come; on a full disk the last of it, once there is room again."""
        self._waiting += data
        try:
            while self._waiting:
                if self._size >= self._room // 2:
                    self._turn()
                taken = os.write(self._handle, self._waiting[: self._room // 2 - self._size])
                self._size += taken
                del self._waiting[:taken]
        except OSError:
            del self._waiting[:-UNWRITTEN_LIMIT]

    def close(self) -> None:
        self.add(b"")
        os.close(self._handle)

    def _turn(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was done, and no new one could be begun
            self._path.replace(before(self._path))
        handle, self._handle = self._handle, self._begun()
        os.close(handle)
        self._size = 0

    def _begun(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def before(path: Path) -> Path:
    """The file with what came before that of an output."""
    return path.with_name(f"{path.name}.before")


def text_of(path: Path) -> str:
    """The end of an output, as much of it as a result may have."""
    data = b""
    for part in (path, before(path)):
        with contextlib.suppress(FileNotFoundError), part.open("rb") as source:
            left = RESULT_LIMIT - len(data)
            source.seek(max(0, part.stat().st_size - left))
            data = source.read(left) + data
    return data.decode(errors="replace")


class Tail:
    """The reader of a growing output's lines.

    Of one that grows by more than its room between two looks, the middle is not read.
    """

    def __init__(self, path: Path, on_output: Callable[[str], None]) -> None:
        self._path = path
        self._lines = Lines(lambda line: on_output(line) if line else None)
        self._source: int | None = None

    def read(self, *, last: bool = False) -> bool:
        """Tell what has come, or some of it, however fast it grows; whether anything has.

        Args:
            last: all of it, and the line that no line end followed.
        """
        passed_on = 0
        while last or passed_on < TOLD_AT_ONCE:
            is_newest = self._at_newest()
            if self._source is not None and (data := os.read(self._source, BLOCK)):
                passed_on += len(data)
                self._tell(data)
            elif is_newest:
                break
            else:
                self._next()
        if last:
            self._tell(b"\n")
        return passed_on > 0

    def close(self) -> None:
        if self._source is not None:
            os.close(self._source)
            self._source = None

    def _at_newest(self) -> bool:
        """Return whether the open file is still the worker's; asked before its end is read."""
        try:
            newest = self._path.stat()
        except FileNotFoundError:  # none yet, or in this moment none
            return True
        return self._source is not None and os.path.samestat(newest, os.fstat(self._source))

    def _next(self) -> None:
        """Go on with the file after that which is open."""
        for path in (before(self._path), self._path):
            try:
                handle = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            if self._source is None or not os.path.sameopenfile(handle, self._source):
                self.close()
                self._source = handle
                return
            os.close(handle)

    def _tell(self, data: bytes) -> None:
        self._lines.add(data.replace(b"\r", b"\n"))


ROOM = 4096
"""Bytes of the status file, taken at the start: a disk that gets full must not hide the end."""


def main(name: str) -> None:
    """Do the work of a unit's folder."""
    folder = Path(name)
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the command ends of it, and we tell how
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    work = json.loads((folder / "work").read_bytes())
    (folder / "work").unlink()
    (folder / "status").write_text(" " * ROOM)
    (folder / "begun").write_text(json.dumps({**now(), "pid": os.getpid()}))
    _tell(folder / "status", _result(folder, work))
    os._exit(0)  # whatever the command left behind is systemd's to end


def _result(folder: Path, work: dict[str, Any]) -> dict[str, Any]:
    """Return how it ended; without it the watcher would take it for killed from outside."""
    try:
        return {"status": _run(folder, work)}
    except ResourceError as error:
        return {"error": error.message, "hint": error.hint}
    except OSError as error:
        return {"error": explain(error)}
    except Exception as error:  # noqa: BLE001  (told to who watches)
        text, hint = unforeseen(error)
        return {"error": text, "hint": hint}


def _run(folder: Path, work: dict[str, Any]) -> int:
    outputs = {1: OutputFile(folder / "out"), 2: OutputFile(folder / "err")}
    running = Running(
        work["argv"],
        env=work["env"],
        user=work["user"],
        timeout=work["timeout"],
        umask=0o022,
    )
    stdin = base64.b64decode(work["stdin"])
    try:
        return running.attend(
            lambda number, data: outputs[number].add(data), threading.Event(), stdin
        )
    finally:
        for output in outputs.values():
            output.close()


def _tell(path: Path, result: dict[str, Any]) -> None:
    text = json.dumps({**result, **now()})
    with path.open("r+b") as out:
        out.write(text.ljust(ROOM).encode())
        out.flush()
        os.fsync(out.fileno())
