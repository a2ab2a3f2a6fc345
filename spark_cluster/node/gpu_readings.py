"""The GPU's state from nvidia-smi: a long-running one every second, and one now and then for the
memory of processes.

A call of nvidia-smi takes 17 ms of a core (driver 580.159 on an H100), once a second would be more
than all else together; one that loops takes under 1 ms a round. In a loop `--query-compute-apps`
prints nothing while no process holds memory, which a hang would look like: it is asked again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Any

from spark_cluster.node.nvidia_smi import APPS, FIGURES, THROTTLE, invalid, number, processes

FIELDS = (*FIGURES, *THROTTLE.values())

SILENT_S = 10.0
"""Seconds (and two intervals) without a word after which nvidia-smi is taken to hang."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Seconds until nvidia-smi is started again: at first, and at most."""

END_S = 1.0
"""Seconds that it may take to end, by SIGTERM and then by SIGKILL; what the kernel holds even so
is left."""

READ = 64 * 1024
"""Bytes read at once, and the most that is kept."""


class Child:
    """A program whose output is read as it comes, and that never is waited for.

    Args:
        argv: the command.
        limit_s: seconds without a word after which it is ended.
    """

    def __init__(self, argv: tuple[str, ...], limit_s: float) -> None:
        self.limit_s = limit_s
        self.text = ""
        self._heard = time.monotonic()
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout is not None  # noqa: S101
        self.handle = self._process.stdout.fileno()
        os.set_blocking(self.handle, False)

    def read(self) -> bool:
        """Take what it has printed; False when its output has ended."""
        try:
            data = os.read(self.handle, READ)
        except BlockingIOError:
            return True
        if data:
            self._heard = time.monotonic()
            self.text = (self.text + data.decode(errors="replace"))[-READ:]
        return bool(data)

    @property
    def hangs(self) -> bool:
        """True if it has said nothing for too long."""
        return time.monotonic() - self._heard > self.limit_s

    def status(self) -> int | None:
        """The exit status, once it has ended."""
        return self._process.poll()

    def end(self, wait_s: float = 0.0) -> bool:
        """End it, and wait so many seconds at most for each signal; False when it goes on."""
        for stop in (self._process.terminate, self._process.kill):
            if self._process.poll() is not None:
                break
            stop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        return self._process.poll() is not None

    def close(self) -> None:
        """Let go of its output."""
        if self._process.stdout is not None:
            self._process.stdout.close()


class Restarting:
    """A child that is started again with growing pauses, but never next to one that goes on."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.note = ""
        self._left: Child | None = None
        self._pause = FIRST_PAUSE_S
        self._next = 0.0

    def due(self) -> bool:
        """Return whether it is time to start it."""
        if self._left is not None and not self._left.end():
            return False
        self._left = None
        return self.child is None and time.monotonic() >= self._next

    def start(self, argv: tuple[str, ...], limit_s: float) -> None:
        """Start it; a program that is not there is noted."""
        try:
            self.child = Child(argv, limit_s)
        except OSError as error:
            self.failed(f"{argv[0]}: {error.strerror or error}")

    def failed(self, note: str) -> None:
        """Note why there is no answer, end what runs, and wait before the next start."""
        self.note = note
        self.drop()
        self._next = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    def worked(self, again_in_s: float = 0.0) -> None:
        """Note that it answered; the next start comes in so many seconds."""
        self.note = ""
        self._pause = FIRST_PAUSE_S
        self._next = time.monotonic() + again_in_s

    def drop(self) -> None:
        """End the child; one that goes on is looked after later."""
        if self.child is not None:
            self.child.close()
            if not self.child.end(0.05):
                self._left = self.child
            self.child = None

    def end(self) -> None:
        """End it for good."""
        for child in (self.child, self._left):
            if child is not None:
                child.end(END_S)


class GpuReader:
    """The GPU's figures from one nvidia-smi that prints a line every interval.

    Args:
        every: seconds between two lines.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._fields = list(FIELDS)
        self._state = Restarting()
        self._figures: dict[str, Any] | None = None
        self._at = 0.0
        self._said = ""
        """What it has printed that is no line of figures: why it ends."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The command; a Spark has one GPU, and of several the first counts."""
        query, milliseconds = ",".join(self._fields), str(round(self._every * 1000))
        form = "--format=csv,noheader,nounits"
        return ("nvidia-smi", "-i", "0", f"--query-gpu={query}", form, "-lms", milliseconds)

    def now(self) -> dict[str, Any] | None:
        """Return the latest figures; None when there are none of the last seconds."""
        self._serve()
        fresh = time.monotonic() - self._at < 2.5 * self._every + 0.5
        return self._figures if fresh else None

    @property
    def note(self) -> str:
        """The reason why there are none."""
        return self._state.note

    def handles(self) -> list[int]:
        """The descriptors on which something may come."""
        return [self._state.child.handle] if self._state.child else []

    def end(self) -> None:
        """End nvidia-smi."""
        self._state.end()

    def _serve(self) -> None:
        if self._state.due():
            self._state.start(self.argv, max(SILENT_S, 2 * self._every))
        child = self._state.child
        if child is None:
            return
        goes_on = child.read()
        *lines, child.text = child.text.split("\n")
        for line in lines:
            self._take(line)
        if not goes_on or child.status() is not None:
            output, self._said = f"{self._said}\n{child.text}", ""
            self._ended(child, output)
        elif child.hangs:
            self._state.failed(f"nvidia-smi has printed nothing for {child.limit_s:g} s")

    def _take(self, line: str) -> None:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(self._fields):
            self._said = f"{self._said}\n{line}"[-READ:]
            return
        values = dict(zip(self._fields, cells, strict=True))
        figures: dict[str, Any] = {
            name: number(values.get(field, "")) for field, name in FIGURES.items()
        }
        reasons = {reason: values.get(field, "") for reason, field in THROTTLE.items()}
        known = [r for r, state in reasons.items() if state in ("Active", "Not Active")]
        figures["throttle"] = [r for r in known if reasons[r] == "Active"] if known else None
        self._figures, self._at = figures, time.monotonic()
        self._state.worked()

    def _ended(self, child: Child, output: str) -> None:
        unknown = invalid(output) & set(self._fields)
        if unknown and len(unknown) < len(self._fields):  # a driver that does not have the field
            self._fields = [field for field in self._fields if field not in unknown]
            self._state.drop()
            return
        text = " ".join(output.split())[:200]
        self._state.failed(f"nvidia-smi ended: {text or f'status {child.status()}'}")


class AppsReader:
    """The memory of processes, by a nvidia-smi every so many seconds.

    Args:
        every: seconds.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._state = Restarting()

    def now(self) -> list[tuple[int, str, int | None]] | None:
        """Return (pid, name, MiB) of each process when there is a new answer, otherwise None."""
        if self._state.due():
            self._state.start(APPS, SILENT_S)
            return None
        child = self._state.child
        if child is None:
            return None
        goes_on = child.read()
        status = child.status()
        if status is None and child.hangs:
            self._state.failed(f"nvidia-smi has not answered for {SILENT_S:g} s")
        if status is None:
            return None
        while goes_on:
            goes_on = child.read() and len(child.text) < READ
        text = child.text
        if status != 0:
            output = " ".join(text.split())[:200]
            self._state.failed(f"nvidia-smi: {output or f'status {status}'}")
            return None
        self._state.drop()
        self._state.worked(self._every)
        return processes(text)

    @property
    def note(self) -> str:
        """The reason why there is no answer."""
        return self._state.note

    def end(self) -> None:
        """End nvidia-smi."""
        self._state.end()
