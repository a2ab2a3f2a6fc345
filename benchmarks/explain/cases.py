"""Excerpts of public failure logs, and what `explain` says of each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

from spark_cluster.issues.explain import explain
from spark_cluster.issues.log_reading import LogSource, Seen

DATA = Path(__file__).parents[2] / "tests" / "data"

Result = Literal["right", "wrong", "unknown"]


@dataclass(frozen=True)
class Case:
    """A public report of a failure.

    Attributes:
        url: the thread.
        set: `built-on` when entries of the catalogue were written from it; `held-out-N` when it was
            collected and measured before any entry was changed for it.
        causes: ids of known issues that are right; empty where no one knows the cause. An id that
            the catalogue does not have says that the cause is known, and not yet to us.
        log: the decisive lines.
    """

    url: str
    set: str
    causes: tuple[str, ...]
    log: str


def files() -> list[Path]:
    """Return the files with cases: the first collection, then those of the folder by name."""
    return [DATA / "public_failures.json", *sorted(DATA.glob("public_failures/*.json"))]


def cases() -> list[Case]:
    """Return all cases."""
    return [
        Case(one["url"], one["set"], tuple(one["causes"]), "\n".join([*one["log"], ""]))
        for path in files()
        for one in json.loads(path.read_text(encoding="utf-8"))
    ]


def named(case: Case) -> tuple[Seen | None, bool]:
    """Return what `explain` shows first, and whether it calls that the cause."""
    source = LogSource(case.url, lambda: BytesIO(case.log.encode()))
    explanation = explain([source])
    first = explanation.cause or next(iter(explanation.problems), None)
    return first, explanation.cause is not None


def judge(case: Case) -> tuple[Result, str]:
    """Return the result, and the id or the decisive line that was named.

    What `explain` does not call the cause (`what happened`, `only consequences`) is never wrong.
    """
    cause, is_cause = named(case)
    if cause is None:
        return "unknown", ""
    if not cause.known or not is_cause:
        return "unknown", cause.finding.id or cause.finding.found
    if cause.finding.id in case.causes:
        return "right", cause.finding.id
    return ("wrong" if cause.certain else "unknown"), cause.finding.id


def count(results: Iterable[Result]) -> dict[Result, int]:
    """Return how many of each there are."""
    found = list(results)
    kinds: tuple[Result, ...] = ("right", "wrong", "unknown")
    return {kind: found.count(kind) for kind in kinds}
