"""The commands whose answers the page shows on request, each run as a user runs it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
