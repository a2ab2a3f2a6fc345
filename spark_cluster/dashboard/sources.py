"""What the pages show: samples of the nodes, answers of commands, reports of runs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from spark_cluster.bench.record import PAGE, RECORD, REPORT, load_record
from spark_cluster.bench.sampling import LiveState, Lost, Update, warnings
from spark_cluster.errors import SparkClusterError

KEPT_S = 1800
"""Seconds of samples that a page begins with."""
LOOK_S = 0.5


class Source(Protocol):
    """What samples come from: `bench.sampling.Sampling`, or a recording."""

    def next(self, timeout: float) -> Update | None:
        """Return the next sample or loss; None after so many seconds without one."""


class Feed:
    """The samples of all nodes in the last half hour, each with a number that grows.

    `run` belongs to a thread of its own; the threads that answer pages call `since`.

    Args:
        names: of the nodes, in the order in which they are shown.
        every: seconds between two samples of a node.
    """

    def __init__(self, names: list[str], every: float) -> None:
        self.names = names
        self.every = every
        self._live = LiveState(names, every)
        self._kept: dict[str, deque[tuple[int, dict[str, Any]]]] = {
            name: deque(maxlen=max(1, round(KEPT_S / every))) for name in names
        }
        self._last = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        """True if no sample comes any more."""
        return self._ended.is_set()

    def run(self, source: Source) -> None:
        """Take samples until `end`.

        An unexpected fault ends it: the pages then show that nothing comes any more.
        """
        try:
            while not self.has_ended:
                update = source.next(LOOK_S)
                if update is not None:
                    self.take(update)
        finally:
            self.end()

    def take(self, update: Update) -> None:
        """Take in a sample, or that a node was lost."""
        with self._lock:
            self._live.take(update)
            if not isinstance(update, Lost):
                self._last += 1
                message = update.to_dict() | {"warnings": warnings(update)}
                self._kept[update.node].append((self._last, message))

    def since(self, number: int) -> dict[str, Any]:
        """Return the samples after one, and which nodes do not answer, for a page.

        Args:
            number: of the last sample that the page has; 0 for all that are kept.
        """
        with self._lock:
            return {
                "nodes": self.names,
                "every": self.every,
                "last": self._last,
                "rows": {n: [m for at, m in kept if at > number] for n, kept in self._kept.items()},
                "troubles": {n: self._live.trouble(node) for n, node in self._live.nodes.items()},
            }

    def end(self) -> None:
        """End it."""
        self._ended.set()


QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "status": ("status",),
    "vram": ("vram",),
    "doctor": ("doctor",),
    "history": ("history",),
    "logs": ("logs", "--tail", "200"),
}
"""Name to words; all of them only read."""

LIMIT_S = 120.0
LARGEST = 8 << 20
"""Bytes of an answer that are taken."""


@dataclass(frozen=True)
class Answer:
    """What a command said.

    Attributes:
        command: as a user types it.
        document: its JSON; None where there is none.
        error: why there is none; empty where there is one.
        seconds: that it took.
    """

    command: str
    document: Any
    error: str
    seconds: float


@dataclass
class Questions:
    """The commands, each run once at a time.

    Args:
        options: before the command: `-i FILE`, `--project FOLDER`.
        program: the command line; this one by default.
    """

    options: Sequence[str]
    program: Sequence[str] = (sys.executable, "-m", "spark_cluster")
    limit_s: float = LIMIT_S
    _at_work: dict[str, asyncio.Task[Answer]] = field(default_factory=dict)

    async def ask(self, name: str) -> Answer:
        """Run a command, or wait for the one that runs already.

        Raises:
            KeyError: there is no such question.
        """
        words = QUESTIONS[name]
        task = self._at_work.get(name)
        if task is None or task.done():
            task = self._at_work[name] = asyncio.create_task(self._run(words))
        return await asyncio.shield(task)

    async def end(self) -> None:
        """End the commands that run."""
        tasks = [task for task in self._at_work.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, words: Sequence[str]) -> Answer:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *self.program,
            *self.options,
            "--json",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), self.limit_s)
        except TimeoutError:
            out, err = b"", f"no answer within {self.limit_s:g} s".encode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        document, error = _read(out, err)
        shown = " ".join(("spark-cluster", *self.options, *words))
        return Answer(shown, document, error, round(time.monotonic() - began, 1))


def _read(out: bytes, err: bytes) -> tuple[Any, str]:
    """Return the JSON document of a command, or why there is none."""
    if len(out) > LARGEST:
        return None, f"the answer has {len(out) >> 20} MiB; run the command in a terminal"
    try:
        return json.loads(out), ""
    except ValueError:
        said = err.decode("utf-8", "replace").strip() or out.decode("utf-8", "replace").strip()
        return None, said[-2000:] or "it said nothing"


MOST = 200
"""Runs that are listed, the newest first."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class BenchRuns:
    """The runs below a folder.

    Args:
        folder: has a folder for each run (`bench-results` of the project).
    """

    folder: Path

    def list(self) -> list[dict[str, Any]]:
        """Return the runs, the newest first; one that cannot be read says why."""
        paths = sorted(self.folder.glob(f"*/{RECORD}"), key=_changed, reverse=True)
        return [
            self._one(path.parent) for path in paths[:MOST] if _NAME.fullmatch(path.parent.name)
        ]

    def _one(self, run: Path) -> dict[str, Any]:
        page = self.page(run.name)
        about: dict[str, Any] = {"name": run.name, "report": page is not None}
        try:
            record = load_record(run)
        except SparkClusterError as error:
            return about | {"error": error.message}
        return about | {
            "suite": record.suite,
            "status": record.status,
            "started": record.started.isoformat(),
            "cells": len(record.cells),
            "failed": sum(cell.status == "failed" for cell in record.cells),
            "servers": [setup.id for setup in record.setups],
        }

    def page(self, name: str) -> Path | None:
        """Return the page of a run's report; None where there is none, or the name is no name.

        A report is one file that loads nothing, so that no other file is ever served.
        """
        if not _NAME.fullmatch(name):
            return None
        path = self.folder / name / REPORT / PAGE
        inside = path.resolve().is_relative_to(self.folder.resolve())
        return path if inside and path.is_file() else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
