"""A job on Ray, as its Jobs API describes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spark_cluster.node.replies import at, short, text_of

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""States of a job that has ended; before that it is PENDING or RUNNING."""


@dataclass(frozen=True)
class Job:
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as `ray list --json` prints it."""
        return dict(vars(self))


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
