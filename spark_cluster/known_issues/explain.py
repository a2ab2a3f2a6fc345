"""The logs of one launch, explained: the cause first, its consequences last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from spark_cluster.known_issues.log_matching import cleared, clearing, recognise, signs
from spark_cluster.known_issues.match import ORDER, KnownIssueMatch
from spark_cluster.logs import lines
from spark_cluster.logs.reading import Candidate, LogSource, Reader
from spark_cluster.logs.start_patterns import ENGINES, SGLANG
from spark_cluster.logs.startup import ANCHORS, RAY, Start

MOST = 200
"""Different errors that are kept; the later ones follow from them."""

REMEMBERED = 20_000
"""Different texts whose meaning is remembered, so that repeated lines cost little."""

TRACES = 2000
"""Tracebacks that are looked at in a log; each costs as much as reading 60 lines."""

SHOWN = 300
ERRORS = (
    *("Error", "Exception", "died unexpectedly", "Segmentation fault", "Segfault encountered"),
    *("(core dumped)", "rror: "),
)
CHAINED = "above exception"
"""In the line between two exceptions of one traceback."""

_RANK = re.compile(r"(?:Worker_TP|VllmWorker-|rank |^TP| TP)(\d{1,4})(?!\d)")


@dataclass(frozen=True)
class Seen:
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
    """

    finding: KnownIssueMatch
    at: str
    number: int
    follows: bool
    order: tuple[int, int]
    count: int = 1
    overcome: bool = False

    @property
    def known(self) -> bool:
        return bool(self.finding.id)

    @property
    def where(self) -> str:
        return f"{self.finding.where}:{self.number}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            **self.finding.to_dict(),
            "where": self.finding.where,
            "line": self.number,
            "at": self.at,
            "count": self.count,
            "follows": self.follows,
            "overcome": self.overcome,
        }


@dataclass
class Explanation:
    """The result for one or more logs.

    Attributes:
        engine: whose logs they are, `vLLM` or `SGLang`; empty when no line says so.
        problems: the earliest real error first, then other errors by time, then warnings, then
            what only follows, then notes, then what the server got over.
        facts: what a healthy start tells.
        missing: what it would have told besides.
        logs: name, bytes and lines of each.
    """

    engine: str = ""
    problems: list[Seen] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    logs: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def cause(self) -> Seen | None:
        """The earliest real error; the earliest effect where the cause is in none of the logs."""
        errors = [p for p in self.problems if p.finding.severity == "error" and not p.overcome]
        return min(errors, key=lambda p: p.follows) if errors else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        cause = self.cause
        return {
            "engine": self.engine,
            "cause": cause.to_dict() if cause else None,
            "issues": [problem.to_dict() for problem in self.problems],
            "facts": self.facts,
            "missing": self.missing,
            "logs": [{"name": n, "bytes": b, "lines": count} for n, b, count in self.logs],
        }


def explain(sources: Iterable[LogSource]) -> Explanation:
    """Explain the logs of one launch, of any length, in constant memory.

    Raises:
        InvalidFile: a log cannot be read, or is no text.
    """
    start, speakers = Start(), dict[str, int]()
    found: list[Seen] = []
    read = []
    for index, source in enumerate(sources):
        log = _Log(source, index, start, speakers)
        found += log.seen()
        read.append((source.name, log.reader.bytes, log.reader.lines))
    return Explanation(
        engine=start.engine.name if start.engine else "",
        problems=_ordered(found),
        facts=start.in_order(),
        missing=[*_nothing(read, found, start), *start.missing(speakers)],
        logs=read,
    )


def _nothing(
    read: Iterable[tuple[str, int, int]], found: list[Seen], start: Start
) -> Iterator[str]:
    """Yield what is wrong with logs that say nothing at all."""
    lengths = {name: count for name, _, count in read}
    yield from (f"a single line: {name} is empty" for name, count in lengths.items() if not count)
    if any(lengths.values()) and not found and not start.facts:
        yield "a word of vLLM, SGLang, Ray or NCCL that is known here: is it a log of theirs?"


def _literals() -> set[str]:
    """Return the literals of the catalogue's patterns."""
    return {sign.has for sign in signs()} | {pattern.has for pattern in clearing().values()}


class _Log:
    """The state of one log while it is read."""

    def __init__(
        self, source: LogSource, index: int, start: Start, speakers: dict[str, int]
    ) -> None:
        self.reader = Reader(source, {*ERRORS, CHAINED, *ANCHORS, *_literals()})
        self.index = index
        self.start, self.speakers = start, speakers
        self._kept: dict[str, Seen] = {}
        self._rank: dict[str, int] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._more: dict[str, int] = {}
        self._past: list[Seen] = []
        self._cleared: set[str] = set()
        self._traces = 0
        self._error: Seen | None = None
        self._chained: Seen | None = None

    def seen(self) -> list[Seen]:
        needed = {*(engine.up for engine in ENGINES), CHAINED, *_literals()}
        of_start = self.reader.standing_for(ANCHORS)
        for candidate in self.reader.candidates():
            for text in candidate.text.split("\r"):  # a progress bar may stand before
                if text:
                    self._look(candidate, text)
            if of_start.isdisjoint(candidate.anchors):
                continue
            for anchor in self.start.take(candidate.text):
                if anchor not in needed:
                    self.reader.drop(anchor)
            if self.start.says_up(candidate.text):
                self._came_up()
        kept = [name for name in self._kept if name not in self._cleared]
        return [*self._past, *(self._counted(name) for name in kept)]

    def _counted(self, name: str) -> Seen:
        """Return what is kept under a name, with how often it was seen."""
        kept = self._kept[name]
        return replace(kept, count=kept.count + self._more.pop(name, 0))

    def _came_up(self) -> None:
        """Mark earlier errors as overcome: the server is up, so they stopped nothing."""
        for name, seen in list(self._kept.items()):
            if seen.finding.severity == "error" or seen.follows:
                self._past.append(replace(self._counted(name), overcome=True))
                del self._kept[name]
        del self._past[MOST:]
        self._names.clear()

    def _look(self, candidate: Candidate, raw: str) -> None:
        line = lines.read(raw)
        if "orker" in raw or "rank " in raw or "TP" in line.speaker:  # as in all names of ranks
            self._hear(line)
        if CHAINED in line.text:
            self._chained = self._error
        self._cleared |= cleared(line.text)
        key = line.text[:SHOWN]
        names = self._names.get(key)
        if names is None:
            names = tuple(self._judge(candidate, line))
            if len(self._names) < REMEMBERED:
                self._names[key] = names
        else:
            for name in names:
                self._more[name] = self._more.get(name, 0) + 1 + line.repeats

    def _judge(self, candidate: Candidate, line: lines.ParsedLine) -> Iterator[str]:
        """Keep what a line shows; yield the names under which it is kept."""
        before = _Before(candidate, line)

        def trace() -> str:
            self._traces += 1
            return before.trace() if self._traces <= TRACES else ""

        error = lines.error_in(line, lambda: candidate.following)
        issues = recognise(f"{line.text} {error}" if error else line.text, trace)
        echo = bool(error) and lines.is_echo(error)
        for issue in issues:
            found = issue.match((error or line.text)[:SHOWN], self.reader.source.name)
            rank = 0 if error and not echo else 2 if echo else 1
            yield self._keep(issue.id, found, candidate, before, rank, follows=issue.follows)
        if error and not issues:
            yield from self._unknown(error[:SHOWN], candidate, before, follows=echo)

    def _unknown(
        self, error: str, candidate: Candidate, before: _Before, *, follows: bool
    ) -> Iterator[str]:
        name = f"error: {error}"
        if name in self._kept or len(self._kept) < MOST:
            found = KnownIssueMatch(
                id="",
                severity="error",
                title="an error that is not among the known issues",
                found=error,
                cause="",
                fix="",
                source="",
                where=self.reader.source.name,
            )
            yield self._keep(name, found, candidate, before, 0, follows=follows)

    def _keep(
        self,
        name: str,
        found: KnownIssueMatch,
        candidate: Candidate,
        before: _Before,
        rank: int,
        *,
        follows: bool,
    ) -> str:
        """Keep the first sight, or a later one that says it better (the error, not its echo)."""
        kept = self._kept.get(name)
        if kept is None:
            order = (self.index, candidate.number)
            seen = Seen(found, before.at, candidate.number, follows, order)
            self._kept[name] = self._placed(seen)
            self._rank[name] = rank
        else:
            self._more[name] = self._more.get(name, 0) + 1
            if rank < self._rank[name]:
                self._kept[name] = replace(
                    kept, finding=found, number=candidate.number, at=before.at
                )
                self._rank[name] = rank
        self._error, self._chained = self._kept[name], None
        return name

    def _placed(self, seen: Seen) -> Seen:
        """Put the last exception of a traceback of SGLang before the earlier ones.

        SGLang wraps what its libraries raise, and says in the last line what failed
        (`Exception: Capture cuda graph failed: ...`). A known cause stays in front.
        """
        first = self._chained
        if first is None or self.start.engine is not SGLANG or (first.known and not seen.known):
            return seen
        return replace(seen, at=first.at, order=(self.index, first.order[1] - 1))

    def _hear(self, line: lines.ParsedLine) -> None:
        """Note which ranks speak."""
        if line.speaker.startswith("RayWorker"):
            self.speakers[RAY] = self.speakers.get(RAY, 0) + 1
        for text in (line.speaker, line.text[:120]):
            if found := _RANK.search(text):
                name = f"rank {found[1]}"
                self.speakers[name] = self.speakers.get(name, 0) + 1


class _Before:
    """The lines before a line, read only when they are needed."""

    def __init__(self, candidate: Candidate, line: lines.ParsedLine) -> None:
        self._candidate = candidate
        self._line = line

    def trace(self) -> str:
        """The last lines of the same speaker, as a traceback has them."""
        if not self._line.text or "Error" not in self._line.text:
            return ""
        passed = self._candidate.context().splitlines()[-lines.TRACE :]
        return lines.trace([lines.read(raw) for raw in passed], self._line.speaker)

    @property
    def at(self) -> str:
        """The line's time, or the last one before it."""
        if self._line.at:
            return self._line.at
        for raw in reversed(self._candidate.context().splitlines()[-lines.TRACE :]):
            if at := lines.read(raw).at:
                return at
        return ""


def _ordered(found: list[Seen]) -> list[Seen]:
    """Merge what all logs show: each issue once, causes by time first, effects and notes last."""
    merged: dict[tuple[str, bool], Seen] = {}
    for seen in sorted(found, key=lambda s: (s.at, s.order)):
        name = (seen.finding.id or seen.finding.found, seen.overcome)
        first = merged.get(name)
        merged[name] = seen if first is None else replace(first, count=first.count + seen.count)

    def place(seen: Seen) -> tuple[int, str, tuple[int, int]]:
        kind = ORDER[seen.finding.severity] + (2 if seen.follows else 0)
        kind += len(ORDER) + 2 if seen.overcome else 0
        return kind, seen.at, seen.order

    return sorted(merged.values(), key=place)
