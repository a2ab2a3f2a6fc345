"""Ray's Jobs API over HTTP, asked by the head over its loopback as `ray.py` asks the State API.

The laptop needs no Ray for it, and no port to it: `JobSubmissionClient` would need both, since the
dashboard listens on the head's loopback only, and Ray's token would leave the node
(source: ray-docs-jobs).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from spark_cluster.errors import Failed
from spark_cluster.inference import ray
from spark_cluster.inference.replies import at, decoded, short, text_of
from spark_cluster.runner.session import Answer

JOBS = "/api/jobs/"

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""States of a job that has ended; before that it is PENDING or RUNNING."""

SUBMIT_S = 60.0
"""Seconds for taking a job: Ray starts its supervisor first."""

SILENT_S = 60.0
"""Seconds without an answer after which Ray is taken to be gone."""

POLL_S = 1.0

OF_RAY = "Running entrypoint for job"
"""Beginning of a line that Ray itself writes into a job's log: the whole command."""


class Asker(Protocol):
    """A client that makes requests: the head's session."""

    def http(
        self,
        url: str,
        *,
        method: str = ...,
        headers: dict[str, str] | None = ...,
        body: str | None = ...,
        timeout: float = ...,
        bearer_file: str = ...,
    ) -> Answer: ...


@dataclass(frozen=True)
class RayJobs:
    """Requests to one head's dashboard.

    Args:
        session: the head's.
        port: of the dashboard, on its loopback.
        where: name of the head, for errors.
    """

    session: Asker
    port: int
    where: str = ""

    def submit(self, entrypoint: str, name: str) -> None:
        """Have a shell command run on the head.

        Args:
            entrypoint: is read by a shell there; nothing that comes from outside may be in it.
            name: the job's id, which must be new.

        Raises:
            Failed: Ray does not take it.
        """
        wanted = {"entrypoint": entrypoint, "submission_id": name, "runtime_env": {}}
        answer = self._ask(JOBS, "POST", json.dumps(wanted), SUBMIT_S)
        if answer.status != 200:
            raise Failed(
                f"Ray did not take the job: {_why(answer)}",
                where=self.where,
                hint="the image needs `ray[default]`, whose dashboard takes jobs",
            )

    def state(self, name: str) -> tuple[str, str]:
        """Return a job's state and Ray's message; two empty texts when Ray does not answer."""
        answer = self._ask(f"{JOBS}{name}")
        job = decoded(answer.body) if answer.status == 200 else None
        return text_of(at(job, "status")), text_of(at(job, "message"))

    def log(self, name: str) -> str | None:
        """Return what a job has printed so far; None when Ray does not answer."""
        answer = self._ask(f"{JOBS}{name}/logs")
        return text_of(at(decoded(answer.body), "logs")) if answer.status == 200 else None

    def stop(self, name: str) -> None:
        """Have a job end; nothing happens where it has ended."""
        self._ask(f"{JOBS}{name}/stop", "POST", "{}")

    def wait(self, name: str, limit_s: float, on_line: Callable[[str], None]) -> str:
        """Wait for a job's end, and return all that it has printed.

        Args:
            limit_s: seconds after which it is stopped.
            on_line: is given the last line that it has printed, as often as there is a new one.

        Raises:
            Failed: it failed or was stopped, took too long, or Ray does not answer any more.
        """
        deadline = time.monotonic() + limit_s
        heard, log, last = time.monotonic(), "", ""
        while True:
            status, message = self.state(name)
            printed = self.log(name)
            log = log if printed is None else printed
            is_whole = printed is not None or status != "SUCCEEDED"
            if status and is_whole:
                heard = time.monotonic()
                if status in ENDED:
                    break
            line = last_line(log)
            if line and line != last:
                on_line(line)
                last = line
            now = time.monotonic()
            if now > deadline or now - heard > SILENT_S:
                self.stop(name)
                silent = now - heard > SILENT_S
                what = "Ray does not answer any more" if silent else f"no end after {limit_s:g} s"
                raise Failed(f"the job on Ray: {what}; it last printed: {last}", where=self.where)
            time.sleep(POLL_S)
        if status != "SUCCEEDED":
            why = last_line(log) or short(message)
            raise Failed(f"the job on Ray {status.lower()}: {why}", where=self.where)
        return log

    def _ask(
        self, path: str, method: str = "GET", body: str | None = None, timeout: float = 10.0
    ) -> Answer:
        return self.session.http(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            headers={"Content-Type": "application/json"} if body is not None else {},
            body=body,
            timeout=timeout,
            bearer_file=ray.TOKEN_FILE,
        )


def last_line(log: str) -> str:
    """Return the last line that a job printed with anything in it, cut to a line's length."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    lines = [line for line in lines if OF_RAY not in line]
    return lines[-1][:200] if lines else ""


def _why(answer: Answer) -> str:
    reason: Any = last_line(answer.body) or answer.reason
    return f"status {answer.status}: {reason}" if answer.status else str(reason)
