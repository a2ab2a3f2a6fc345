"""Matching of log lines against the catalogue's patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

from spark_cluster.known_issues.entries import Issue, catalogue, per_project
from spark_cluster.known_issues.log_pattern import LogPattern
from spark_cluster.known_issues.match import KnownIssueMatch

_DIGITS = re.compile(r"[0-9]+")

LONGEST = 4000
"""Characters of a line that are looked at closely; what matters stands at its beginning."""


@dataclass(frozen=True)
class Sign:
    """A text that shows an issue: the literal, the expression, what must not be in the line, what
    must stand before."""

    issue: Issue
    words: LogPattern
    has: str
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None
    trace: re.Pattern[str] | None

    def is_in(self, text: str) -> bool:
        """Return True when a line shows it; what stands before is not looked at."""
        if self.has not in text or not self.pattern.search(text):
            return False
        if self.unless is not None and self.unless.search(text):
            return False
        return self.words.holder_as_wanted(text)


def _compiled(expression: str | None) -> re.Pattern[str] | None:
    return re.compile(expression) if expression else None


@per_project
def signs() -> tuple[Sign, ...]:
    """Return all signs of the catalogue; causes before what follows from them."""
    found = [
        Sign(issue, words, words.has, words.regex, _compiled(words.unless), _compiled(words.trace))
        for issue in catalogue().values()
        for words in issue.log
    ]
    return tuple(sorted(found, key=lambda sign: (sign.issue.follows, sign.issue.broad)))


@per_project
def clearing() -> dict[str, LogPattern]:
    """Return, by issue, the pattern that shows that it came to nothing."""
    return {i.id: i.cleared_by for i in catalogue().values() if i.cleared_by is not None}


def cleared(text: str) -> set[str]:
    """Return the issues that a line shows to have come to nothing in this log."""
    return {id for id, p in clearing().items() if p.has in text and p.regex.search(text)}


@per_project
def confirming() -> dict[str, LogPattern]:
    """Return, by issue, the pattern that shows that it did not come to nothing."""
    return {i.id: i.confirmed_by for i in catalogue().values() if i.confirmed_by is not None}


def confirmed(text: str) -> set[str]:
    """Return the issues that a line shows to be there, whatever clears them in this log."""
    return {id for id, p in confirming().items() if p.has in text and p.regex.search(text)}


@per_project
def _possible() -> Callable[[str], tuple[Sign, ...]]:
    """Return what finds the signs whose literals can be in a text of a shape, and keeps them.

    A shape is a text without its digits. The lines of a flood of errors differ in numbers, so that
    they have few shapes, and what holds for one need not be looked for in each.
    """
    literals = [(sign, _DIGITS.sub("", sign.has)) for sign in signs()]

    @lru_cache(maxsize=1024)
    def possible(shape: str) -> tuple[Sign, ...]:
        return tuple(sign for sign, literal in literals if literal in shape)

    return possible


@per_project
def _evidence() -> dict[str, LogPattern]:
    """Return, by issue, what must have stood earlier in the log."""
    return {i.id: i.evidence for i in catalogue().values() if i.evidence is not None}


def evidence_in(text: str) -> set[str]:
    """Return the issues for which a line is evidence."""
    return {id for id, p in _evidence().items() if p.has in text and p.regex.search(text)}


def literals() -> set[str]:
    """Return a literal of every pattern of the catalogue."""
    others = [*clearing().values(), *confirming().values(), *_evidence().values()]
    return {sign.has for sign in signs()} | {pattern.has for pattern in others}


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
    for sign in _possible()(_DIGITS.sub("", text)):
        if sign.issue.id in found or not sign.is_in(text):
            continue
        if sign.issue.evidence is not None and sign.issue.id not in evident:
            continue
        if sign.trace is None or sign.trace.search(before()):
            found[sign.issue.id] = sign.issue
    return list(found.values())


def known_for(text: str, before: str = "") -> KnownIssueMatch | None:
    """Return the known issue that explains an error; a cause rather than a consequence.

    Args:
        text: of the error, or of a line of a log.
        before: lines just before it, of the same process.
    """
    found = recognise(text, lambda: before)
    return found[0].match(text.strip()) if found else None
