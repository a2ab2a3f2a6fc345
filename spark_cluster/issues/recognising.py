"""Which known issues a line of a log shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

from spark_cluster.issues.entries import Issue, catalogue
from spark_cluster.issues.finding import Finding

_DIGITS = re.compile(r"[0-9]+")

LONGEST = 4000
"""Characters of a line that are looked at closely; what matters stands at its beginning."""


@dataclass(frozen=True)
class Sign:
    """A text that shows an issue: the literal, the expression, what must stand before."""

    issue: Issue
    has: str
    pattern: re.Pattern[str]
    trace: re.Pattern[str] | None


@cache
def signs() -> tuple[Sign, ...]:
    """All signs of the catalogue; causes before what follows from them."""
    found = [
        Sign(issue, words.has, words.regex, re.compile(words.trace) if words.trace else None)
        for issue in catalogue().values()
        for words in issue.log
    ]
    return tuple(sorted(found, key=lambda sign: sign.issue.follows))


@lru_cache(maxsize=1024)
def _possible(shape: str) -> tuple[Sign, ...]:
    """The signs whose literals can be in a text of this shape.

    Args:
        shape: a text without its digits. The lines of a flood of errors differ in numbers, so that
            they have few shapes, and what holds for one need not be looked for in each.
    """
    return tuple(sign for sign in signs() if _DIGITS.sub("", sign.has) in shape)


def recognise(text: str, before: Callable[[], str] = str) -> list[Issue]:
    """The issues that a line shows, each once.

    Args:
        text: the line without prefixes.
        before: gives the lines just before it, of the same process, where a traceback stands; few
            signs ask for them.
    """
    text = text[:LONGEST]
    found: dict[str, Issue] = {}
    for sign in _possible(_DIGITS.sub("", text)):
        if sign.has not in text or sign.issue.id in found or not sign.pattern.search(text):
            continue
        if sign.trace is None or sign.trace.search(before()):
            found[sign.issue.id] = sign.issue
    return list(found.values())


def known_for(text: str, before: str = "") -> Finding | None:
    """The known issue that explains an error; a cause rather than what only follows from one.

    Args:
        text: of the error, or of a line of a log.
        before: lines just before it, of the same process.
    """
    found = recognise(text, lambda: before)
    return of_log(found[0], text.strip()) if found else None


def of_log(issue: Issue, found: str, where: str = "") -> Finding:
    """What is said of an issue that a log shows."""
    return Finding(
        id=issue.id,
        severity=issue.severity,
        title=issue.title,
        found=found,
        cause=issue.cause,
        fix=issue.fix,
        source=issue.source,
        flag=issue.flag,
        where=where,
    )
