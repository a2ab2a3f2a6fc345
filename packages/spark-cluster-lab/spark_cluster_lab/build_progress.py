"""The progress of builds: what is built, how far it is, and the time left, every few seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster.node.output import duration
from spark_cluster_lab.artefact import Artefact
from spark_cluster_lab.machine import Progress

INTERVAL_S = 10.0
UNFINISHED = 0.95
"""Most of an artefact that counts as done before it is: its size is only about what is usual."""


@dataclass
class BuildProgress:
    """Progress of several artefacts that are built in parallel.

    The estimate starts with the usual seconds and then follows the pace of this machine.

    Args:
        artefacts: those that are not there yet.
        progress: is given the lines.
        clock: seconds, monotonic.
    """

    artefacts: Sequence[Artefact]
    progress: Progress
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def headline(self) -> str:
        """Return what will be built, with the usual time and size."""
        names = ", ".join(artefact.name for artefact in self.artefacts)
        size = sum(artefact.usual_mb for artefact in self.artefacts)
        return (
            f"building once what the nodes are booted from: {names} "
            f"({_size(size)}; about {_duration(self._usual_s())} on two quiet cores)"
        )

    def line(self) -> str:
        """Return the progress of each artefact in work, and about how long the remainder takes."""
        parts = []
        for artefact in self.artefacts:
            if not artefact.ready and artefact.unfinished.is_dir():
                parts.append(f"{artefact.name}{_much(artefact)}")
        left = self.left_s()
        parts.append(f"about {_duration(left)} left" if left > 0 else "nearly done")
        return ", ".join(parts)

    def left_s(self) -> float:
        """Estimate of the seconds left."""
        total = sum(artefact.usual_s for artefact in self.artefacts) or 1.0
        done = sum(artefact.usual_s * _done(artefact) for artefact in self.artefacts) / total
        elapsed = self.clock() - self.started
        usual = max(self._usual_s() - elapsed, 0.0)
        measured = elapsed * (1 / done - 1) if done else usual
        return usual * (1 - done) + measured * done

    def _usual_s(self) -> float:
        """Two at a time."""
        longest = max((artefact.usual_s for artefact in self.artefacts), default=0.0)
        return max(sum(artefact.usual_s for artefact in self.artefacts) * 0.75, longest)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a line every few seconds for as long as the block runs."""
        over = threading.Event()

        def show() -> None:
            while not over.wait(INTERVAL_S):
                self.progress(self.line())

        self.progress(self.headline())
        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(INTERVAL_S)


def size_mb(folder: Path) -> int:
    """Megabytes of the files below a folder that is being written to."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone since
                total += os.lstat(Path(path, name)).st_size
    return total // 1_000_000


def _done(artefact: Artefact) -> float:
    if artefact.ready:
        return 1.0
    if not artefact.usual_mb or not artefact.unfinished.is_dir():
        return 0.0
    return min(size_mb(artefact.unfinished) / artefact.usual_mb, UNFINISHED)


def _much(artefact: Artefact) -> str:
    """Return how much of it is there; empty for what is small, or already larger than usual."""
    size, usual = size_mb(artefact.unfinished), artefact.usual_mb
    return f" {_size(size)} of about {_size(usual)}" if 10 < usual > size else ""


def _size(mb: int) -> str:
    return f"{mb / 1000:.1f} GB" if mb >= 1000 else f"{mb} MB"


def _duration(seconds: float) -> str:
    """Return a time in steps of 10 s: the lines come that often."""
    return duration(max(round(seconds, -1), 10))
