"""The logs of the engine's containers, and the earliest real error in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from spark_cluster.engine.session import Session
from spark_cluster.errors import Failed

_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\S+Z) ?(.*)$")
_ERROR = re.compile(
    r"(?<![\w./])(?<!raise )((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b(?:\(.*\)|: .+))"
    r"|(\w+ rank=\[\d+\] died unexpectedly)"
)
_HARMLESS = re.compile(r"^\W*(?:\([^)]*\) *)*(?:INFO|DEBUG|WARNING)\b")
"""A line of vLLM below the level of an error, which may quote one."""

_ECHO = re.compile(
    r"Engine core initialization failed|root cause above|EngineDead|EngineCore encountered|"
    r"died unexpectedly|RayTaskError|ActorDiedError|Failed core proc|CancelledError|"
    r"Executor failed|Worker failed with error"
)
"""What follows from an earlier error in another process, and is never its cause."""

_COUNTED = re.compile(r"validation errors? for \w+$")
"""pydantic says in the next line what is wrong."""

_PREFIX = re.compile(r"^(?:\([^)]*\) *)+")
"""`(APIServer pid=1) `: which process of vLLM speaks."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Fault:
    """An error line of one container; `at` is Docker's time stamp."""

    where: str
    text: str
    at: str = ""


def read(session: Session, container: str, *, lines: int = 400) -> str:
    """The end of a container's log with Docker's time stamps; empty when there is none."""
    try:
        done = session.run(["docker", "logs", "--timestamps", "--tail", str(lines), container])
    except Failed:  # an idle node need not even have Docker
        return ""
    return done.stdout + done.stderr if done.status == 0 else ""


def last_line(log: str) -> str:
    """The last line that says something, without time stamp and colours."""
    for line in reversed(log.splitlines()):
        text = _plain(line)[1]
        if text:
            return text
    return ""


def first_error(logs: Mapping[str, str]) -> Fault | None:
    """The earliest error over all logs that does not merely follow from another.

    Args:
        logs: where (`spark1 spark-vllm`) to its text, with time stamps or without.
    """
    found = [f for where, log in logs.items() for f in _faults(where, log)]
    causes = [f for f in found if not _ECHO.search(f.text)] or found
    return min(causes, key=lambda fault: fault.at) if causes else None


def _faults(where: str, log: str) -> list[Fault]:
    faults = []
    lines = [_plain(line) for line in log.splitlines()]
    for (at, text), (_, following) in pairwise([*lines, ("", "")]):
        match = None if _HARMLESS.match(text) else _ERROR.search(text)
        if match:
            said = match[1] or match[2]
            if _COUNTED.search(said):
                said += ": " + _PREFIX.sub("", following).partition(" [type=")[0].strip()
            faults.append(Fault(where, said, at))
    return faults


def _plain(line: str) -> tuple[str, str]:
    clean = _ANSI.sub("", line)
    stamped = _STAMP.match(clean)
    return (stamped[1], stamped[2].strip()) if stamped else ("", clean.strip())
