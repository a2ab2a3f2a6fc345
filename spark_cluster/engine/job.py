"""A job on Ray, as its Jobs API describes it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.document import Document
from spark_cluster.errors import UsageError
from spark_cluster.node.replies import at, short, text_of

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""States of a job that has ended; before that it is PENDING or RUNNING."""

LARGEST_FOLDER = 500 << 20
"""Bytes of a working folder that Ray takes (source: ray-docs-runtime-env)."""

LEFT_OUT = (".git", ".venv", "venv", "__pycache__")
"""Folders that Ray does not send (source: ray-docs-runtime-env)."""

IGNORING = {".gitignore", ".rayignore"}
"""Files that name more of what Ray does not send."""


@dataclass(frozen=True)
class Job(Document):
    """A job that was submitted.

    Attributes:
        id: its submission id.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        entrypoint: the shell command.
        message: what Ray says of its state.
        exit_code: of the command; None while it runs, and where Ray does not tell it.
        started, ended: Unix time in seconds; None where it has not.
    """

    id: str
    status: str
    entrypoint: str = ""
    message: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def has_ended(self) -> bool:
        """True if it does not run any more, and never will."""
        return self.status in ENDED

    @property
    def exit_status(self) -> int:
        """Exit status of a command that waited for it: the job's own, 128 and the signal that
        ended it, or 1 for one that failed without a status."""
        if self.status == "SUCCEEDED":
            return 0
        code = self.exit_code or 1
        return 128 - code if -64 <= code < 0 else code & 0xFF or 1

    @property
    def why(self) -> str:
        """Why it ended as it did, in a line."""
        return short(" ".join(self.message.partition(", last available logs")[0].split()))


def must_be_an_id(name: str) -> None:
    """Look whether a text can be the id of a job.

    Raises:
        UsageError: it cannot.
    """
    if not re.fullmatch(r"[\w.-]{1,200}", name):
        raise UsageError(f"{name!r} is not the id of a job", hint="spark-cluster ray list")


def must_be_sendable(folder: Path) -> None:
    """Look whether a working folder is small enough for Ray, as far as is certain without packing.

    Folders with a .gitignore are left to Ray's client, which looks when it has packed them.

    Raises:
        UsageError: it is too large.
    """
    size = 0
    for place, folders, names in os.walk(folder):
        if not IGNORING.isdisjoint(names):
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            with contextlib.suppress(OSError):  # it was removed meanwhile
                size += (Path(place) / name).stat().st_size
        if size > LARGEST_FOLDER:
            raise UsageError(
                f"{folder} holds more than {LARGEST_FOLDER >> 20} MiB, the most that Ray takes",
                hint="list what the job does not need in a .gitignore there, and put large data on "
                "the nodes",
            )


def job_of(row: Any) -> Job | None:
    """Read a job of Ray's answer, which is foreign input.

    Returns:
        None for what was not submitted as a job, such as a server that runs on this Ray.
    """
    name, status = text_of(at(row, "submission_id")), text_of(at(row, "status"))
    if not name or not status:
        return None
    code = at(row, "driver_exit_code")
    return Job(
        name,
        status,
        text_of(at(row, "entrypoint")),
        text_of(at(row, "message")),
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        _seconds(at(row, "start_time")),
        _seconds(at(row, "end_time")),
    )


def newest_first(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs by the time of their start, the newest first."""
    return sorted(jobs, key=lambda job: -(job.started or 0))


def _seconds(value: Any) -> float | None:
    """Seconds of what Ray gives in milliseconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value / 1000 if is_number and 0 < value < 1e14 else None
