"""What was seen in logs, and which of it is the cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from spark_cluster.config.schema import Document, Flat, Hidden, derived, printed
from spark_cluster.issues.match import ORDER, KnownIssueMatch

Verdict = Literal["cause", "likely", "unknown", "effects", "unfinished", "warnings", "no-error"]
"""A known cause; what happened, though not for certain why; an error that is not known; only what
follows from one; nothing, but the server never came up; only warnings; nothing."""

APART_S = 30
"""Seconds after an error that is not known in which a known one still belongs to it. What comes
later may well be its consequence (a restart, or another rank's time-out)."""


@dataclass(frozen=True)
class Seen(Document):
    """A known issue or an error without one, where it was seen first.

    Attributes:
        finding: severity `error` and an empty id for an error that is not known.
        at: its time, as `lines.ParsedLine.at`; the time of the line before where it has none.
        number: of the line in its log.
        follows: it is an effect of something earlier.
        count: how often it was seen.
        overcome: the server was up after it, so it stopped nothing; or it was before a restart.
        order: of the log among those given, and of the line in it; breaks ties. The last exception
            of a traceback of SGLang stands before the earlier ones, which it sums up.
        broad: a known issue that says what happened and not why.
        weak: it looks like an error, but is no exception.
        faint: a word of it may mean an error.
        serving: the server had come up before it.
        last_cause: it is an effect, and the cause where the logs of all ranks show no other.
    """

    finding: Flat[KnownIssueMatch]
    at: str
    number: Annotated[int, Field(serialization_alias="line")]
    follows: bool
    order: Hidden[tuple[int, int]]
    count: int = 1
    overcome: bool = False
    broad: Hidden[bool] = False
    weak: Hidden[bool] = False
    faint: Hidden[bool] = False
    serving: Hidden[bool] = False
    last_cause: Hidden[bool] = False
    log = derived(str, "finding.where", key="where")

    @property
    def known(self) -> bool:
        return bool(self.finding.id)

    @property
    def where(self) -> str:
        return f"{self.finding.where}:{self.number}"

    @printed
    def certain(self) -> bool:
        """A known issue whose sign is specific enough to be named as the cause."""
        return self.known and not self.broad and not self.follows

    @property
    def rank(self) -> int:
        """How near to a cause it is: specific, an error, a complaint, an effect, a mere word."""
        if self.follows:
            return 3 if self.known and self.finding.severity == "error" else 5
        if self.certain:
            return 0
        if self.faint:
            return 4
        return 2 if self.weak else 1


def cause_of(problems: Iterable[Seen]) -> Seen | None:
    """Return the root: the earliest specific issue, else the earliest error, else an effect; of
    errors at one time a known one.

    An error that is not known goes before a known one that came much later, while the server was
    starting: that one may be its consequence.
    """
    wanted = [
        p for p in problems if not p.overcome and (p.finding.severity == "error" or p.follows)
    ]
    if not wanted:
        return None
    first = min(wanted, key=lambda p: (p.rank, p.at, not p.known, p.order))
    if first.rank == 0:
        earlier = [p for p in wanted if p.rank == 1 and not p.serving and _apart(p.at, first.at)]
        if earlier:
            return min(earlier, key=lambda p: (p.at, p.order))
    return first


def _apart(first: str, second: str) -> bool:
    """Return True when the second time is much later; False where one of them has no time."""
    try:
        begin, end = (
            datetime.strptime(f"2024-{at}", "%Y-%m-%d %H:%M:%S.%f") for at in (first, second)
        )
    except ValueError:
        return False
    return (end - begin).total_seconds() > APART_S


def verdict_on(cause: Seen | None, *, unfinished: bool, warned: bool) -> Verdict:
    """Return what can be said of a launch.

    Args:
        cause: what `cause_of` chose.
        unfinished: the logs show a start, and not that the server took requests.
        warned: the logs show a known issue that need not stop the server.
    """
    if cause is None:
        return "unfinished" if unfinished else "warnings" if warned else "no-error"
    if cause.follows:
        return "effects"
    if not cause.known:
        return "unknown"
    return "cause" if cause.certain else "likely"


def with_last_cause(problems: Sequence[Seen]) -> list[Seen]:
    """Return the problems of whole logs: an effect that nothing else explains is the cause then
    (a worker that was killed writes no error of its own).
    """
    cause = cause_of(problems)
    return [
        replace(seen, follows=False) if seen is cause and seen.last_cause else seen
        for seen in problems
    ]


def _after_cause(seen: Seen, cause: Seen | None) -> Seen:
    """Return a general issue that came after a specific cause as its effect: "torch.compile failed"
    is no second cause after the line that says why.
    """
    if cause is None or not cause.certain or not seen.broad or seen.overcome != cause.overcome:
        return seen
    return replace(seen, follows=(cause.at, cause.order) <= (seen.at, seen.order))


def merged(found: Sequence[Seen]) -> list[Seen]:
    """Return what all logs show: each issue once, the cause first, effects and notes last."""
    once: dict[tuple[str, bool], Seen] = {}
    for seen in sorted(found, key=lambda s: (s.at, s.order)):
        name = (seen.finding.id or seen.finding.found, seen.overcome)
        first = once.get(name)
        once[name] = seen if first is None else replace(first, count=first.count + seen.count)
    cause = cause_of(once.values())
    found = [seen if seen is cause else _after_cause(seen, cause) for seen in once.values()]

    def place(seen: Seen) -> tuple[bool, int, str, tuple[int, int]]:
        kind = ORDER[seen.finding.severity] + (2 if seen.follows else 0)
        kind += len(ORDER) + 2 if seen.overcome else 0
        return seen is not cause, kind, seen.at, seen.order

    return sorted(found, key=place)
