"""Matching of log lines against the catalogue's patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache

from spark_cluster.issues.entries import Issue, catalogue, per_project
from spark_cluster.issues.log_pattern import LogPattern
from spark_cluster.issues.match import KnownIssueMatch

_DIGITS = re.compile(r"[0-9]+")

LONGEST = 4000
"""Characters of a line that are looked at closely; what matters stands at its beginning."""


Sign = tuple[Issue, LogPattern]
"""An issue and a text that shows it."""

MARKS = ("evidence", "cleared_by", "confirmed_by")
"""Patterns of an issue that say in other lines of the same log what its signs are worth."""


@per_project
def signs() -> tuple[Sign, ...]:
    """Return all signs of the catalogue; causes before what follows from them."""
    found = [(issue, words) for issue in catalogue().values() for words in issue.log]
    return tuple(sorted(found, key=lambda sign: (sign[0].follows, sign[0].broad)))


@per_project
def _marks() -> tuple[tuple[str, str, LogPattern], ...]:
    """Return the kind and pattern of every mark, with the issue's id."""
    found = ((k, i.id, getattr(i, k)) for i in catalogue().values() for k in MARKS)
    return tuple(mark for mark in found if mark[2] is not None)


def marks_in(text: str) -> set[tuple[str, str]]:
    """Return the marks in a line: one of MARKS, and the id of the issue."""
    return {(kind, id) for kind, id, pattern in _marks() if pattern.is_in(text)}


@per_project
def _possible() -> Callable[[str], tuple[Sign, ...]]:
    """Return what finds the signs whose literals can be in a text of a shape, and keeps them.

    A shape is a text without its digits. The lines of a flood of errors differ in numbers, so that
    they have few shapes, and what holds for one need not be looked for in each.
    """
    literals = [(sign, _DIGITS.sub("", sign[1].has)) for sign in signs()]

    @lru_cache(maxsize=1024)
    def possible(shape: str) -> tuple[Sign, ...]:
        return tuple(sign for sign, literal in literals if literal in shape)

    return possible


def literals() -> set[str]:
    """Return a literal of every pattern of the catalogue."""
    return {words.has for _, words in signs()} | {pattern.has for *_, pattern in _marks()}


def recognise(
    text: str, before: Callable[[], str] = str, evident: Collection[str] = ()
) -> list[Issue]:
    """Return the issues that a line shows, each once.

    Args:
        text: the line without prefixes.
        before: gives the lines just before it, of the same process, where a traceback stands; few
            signs ask for them.
        evident: the issues for which the log had evidence; those that need some are found with it
            only.
    """
    text = text[:LONGEST]
    found: dict[str, Issue] = {}
    for issue, words in _possible()(_DIGITS.sub("", text)):
        if issue.id in found or not words.is_in(text):
            continue
        if issue.evidence is not None and issue.id not in evident:
            continue
        if words.trace is None or re.search(words.trace, before()):
            found[issue.id] = issue
    return list(found.values())


def known_for(text: str, before: str = "") -> KnownIssueMatch | None:
    """Return the known issue that explains an error; a cause rather than a consequence.

    Args:
        text: of the error, or of a line of a log.
        before: lines just before it, of the same process.
    """
    found = recognise(text, lambda: before)
    return found[0].match(text.strip()) if found else None
