"""The logs of one launch, explained: the cause first, its consequences last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from spark_cluster.config.schema import Document, Hidden, derived, printed
from spark_cluster.issues import log_lines
from spark_cluster.issues.entries import (
    LONGEST,
    Issue,
    KnownIssueMatch,
    catalogue,
    known_for,
    literals,
    marks_in,
    per_project,
    recognise,
    words_in,
)
from spark_cluster.issues.log_reading import (
    AnchoredLine,
    LogSource,
    Reader,
    Seen,
    Verdict,
    cause_of,
    merged,
    verdict_on,
    with_last_cause,
)
from spark_cluster.issues.startup import (
    ANCHORS,
    ENGINES,
    RAY,
    SGLANG,
    VLLM,
    EngineLog,
    Start,
    writer,
)

MOST = 200
"""Different errors that are kept; the later ones follow from them."""

REMEMBERED = 20_000
"""Different texts whose meaning is remembered, so that repeated lines cost little."""

WEAK = 50
"""Different lines that only look like errors that are kept of a log."""

LAST = 3
"""Last lines shown of a log without an error."""

QUIET = 8
"""Logs without an error of which the last lines are shown."""

TRACES = 2000
"""Tracebacks that are looked at in a log; each costs as much as reading 60 lines. Also lines with
the same words of known issues that showed the same, after which the others are not judged."""

SHOWN = 300
"""Characters of a quoted line."""

PASTED = 8
"""Lines of a text that is no log, but what someone copied of one."""

ERRORS = (
    *("Exception", "died unexpectedly", "Segmentation fault", "Segfault encountered"),
    *("(core dumped)", *log_lines.ANCHORS),
)
CHAINED = "above exception"
"""In the line between two exceptions of one traceback."""

CUT_OFF = "the log ends within a traceback, before its error"
"""Begins the quote of a log that does."""

WORKERS = tuple(f"Worker_TP{rank}" for rank in range(4))
"""Names of the ranks of up to four nodes. The first line of each is looked at, whatever it says:
a log without its start may have no other line that tells that this rank is in it."""

_SGLANG_RANKS = re.compile(r"(?:[A-Z]{2,4}\d{1,4} )*TP\d{1,4}\b")
_RANK = re.compile(r"(?:Worker_TP|VllmWorker-|\brank |^TP| TP)(\d{1,4})(?!\d)")


def explain(sources: Iterable[LogSource]) -> Explanation:
    """Explain the logs of one launch, of any length, in constant memory.

    Raises:
        InvalidFile: a log cannot be read, or is no text.
    """
    start, speakers = Start(), dict[str, int]()
    found: list[Seen] = []
    read = []
    last: dict[str, list[str]] = {}
    for index, source in enumerate(sources):
        log = _Log(source, index, start, speakers)
        seen = log.seen()
        found += seen
        read.append(ReadLog(source.name, log.reader.bytes, log.reader.lines))
        told = any(one.finding.severity == "error" and not one.follows for one in seen)
        if not told and len(last) < QUIET:
            last[source.name] = log.last_lines()
    problems = merged(found)
    cause = cause_of(problems)
    if start.is_whole(speakers, was_serving=cause is not None and cause.serving):
        problems = with_last_cause(problems)
    problems = [_advised(seen, start) for seen in problems]
    explanation = Explanation(
        engine=start.engine.name if start.engine else "",
        problems=problems,
        facts=start.in_order(),
        missing=start.missing(speakers),
        logs=read,
        last={name: said for name, said in last.items() if said},
        unfinished=start.is_unfinished(speakers),
    )
    explanation.missing[:0] = _nothing(explanation)
    return explanation


def _advised(seen: Seen, start: Start) -> Seen:
    """Return a problem with the advice for the engine and the model that wrote the logs."""
    if not seen.known:
        return seen
    names = [start.facts[name] for name in ("model", "architecture") if name in start.facts]
    return replace(seen, finding=in_words_of(start.engine or VLLM, seen.finding, names))


def in_words_of(
    engine: EngineLog, found: KnownIssueMatch, names: Sequence[str] = ()
) -> KnownIssueMatch:
    """Return what was found with the advice for an engine, and for the models by these names."""
    fix = catalogue()[found.id].fix_for(names, engine.key)
    title, cause, fix, flag = map(engine.in_its_words, (found.title, found.cause, fix, found.flag))
    return replace(found, title=title, cause=cause, fix=fix, flag=flag)


def known_in(log: str, text: str, before: str = "") -> KnownIssueMatch | None:
    """Return the known issue that explains an error of a log, in the words of its engine.

    Args:
        text: of the error.
        before: lines just before it, of the same process.
    """
    found = known_for(text, before)
    return None if found is None else in_words_of(writer(log) or VLLM, found)


def _nothing(explanation: Explanation) -> Iterator[str]:
    """Yield what is wrong with logs that say nothing at all."""
    logs = explanation.logs
    yield from (f"a single line: {log.name} is empty" for log in logs if not log.lines)
    if not explanation.recognised and any(log.lines for log in logs):
        yield "a start: no line of an engine was recognised"


def _quoted(text: str) -> str:
    """Return a text cut between words in its middle: an error ends with why, or with what to do."""
    if len(text) <= SHOWN:
        return text
    begin, end = text[: SHOWN // 2], text[-SHOWN // 2 :]
    return f"{begin.rpartition(' ')[0] or begin} … {end.partition(' ')[2] or end}"


def _continued(text: str, candidate: AnchoredLine, line: log_lines.ParsedLine) -> str:
    """Return a text to quote with the next lines, where its sentence goes on there."""
    return log_lines.joined(text, line, candidate.wrapped(), certain=True)


def _specific(issues: Sequence[Issue]) -> bool:
    return any(not issue.broad and not issue.follows for issue in issues)


@per_project
def _searched() -> frozenset[str]:
    """Return the literals that a log is searched for."""
    return literals().union(ERRORS, (CHAINED,), WORKERS, ANCHORS)


_LASTING = {CHAINED, *(engine.up for engine in ENGINES)}
"""Literals that are searched for to the end of a log, next to those of the catalogue."""


class _Log:
    """The state of one log while it is read."""

    def __init__(
        self, source: LogSource, index: int, start: Start, speakers: dict[str, int]
    ) -> None:
        self.reader = Reader(source, _searched())
        self.index = index
        self.start, self.speakers = start, speakers
        self._kept: dict[str, Seen] = {}
        self._rank: dict[str, int] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._alike: dict[frozenset[str], tuple[tuple[str, ...], int]] = {}
        self._more: dict[str, int] = {}
        self._past: list[Seen] = []
        self._marks: set[tuple[str, str]] = set()
        self._traces = 0
        self._weak = 0
        self._up = False
        self._stopped = False
        self._error: Seen | None = None
        self._chained: Seen | None = None

    def seen(self) -> list[Seen]:
        of_start = self.reader.standing_for(ANCHORS)
        for candidate in self.reader.candidates():
            for text in candidate.text.split("\r"):  # a progress bar may stand before
                if text:
                    self._look(candidate, text)
            self._drop_workers(candidate.text)
            if of_start.isdisjoint(candidate.anchors):
                continue
            for anchor in self.start.take(candidate.text):
                if anchor not in _LASTING and anchor not in literals():
                    self.reader.drop(anchor)
            self._stopped = self._stopped or self.start.says_end(candidate.text)
            if self.start.says_up(candidate.text):
                self._came_up()
            self._up = self._up or self.start.says_served(candidate.text)
        cleared = self._marked("cleared_by") - self._marked("confirmed_by")
        if not self._has_error() and not self._up:
            self._take_cut_off()
        if not self._kept and not self._up and self.reader.lines <= PASTED:
            self._take_pasted()
        kept = [name for name in self._kept if name not in cleared]
        return [*self._past, *(self._counted(name) for name in kept)]

    def _take_pasted(self) -> None:
        """Keep what a short text without an error complains of."""
        for number, raw in enumerate(self.reader.tail.splitlines(), 1):
            if text := log_lines.pasted_complaint_in(raw):
                at = AnchoredLine(number, raw, (), b"", 0, 0)
                before = _Before(at, log_lines.read(raw))
                kind = {"follows": False, "weak": True, "faint": True}
                list(self._unknown(_quoted(text), at, before, **kind))

    def _has_error(self) -> bool:
        """Return True where something was kept that does not merely follow from an error."""
        return any(not seen.follows for seen in self._kept.values())

    def _take_cut_off(self) -> None:
        """Keep a traceback that the log breaks off, before the error itself."""
        lines = [log_lines.read(raw) for raw in self.reader.tail.splitlines()]
        at = log_lines.raised_at("\n".join(line.text for line in lines if line.text))
        # the stack of a warning has no such line
        traced = "Traceback (most recent" in self.reader.tail
        begun = at and (traced or lines[-1].level == "ERROR")
        if begun and not any(map(log_lines.error_in, lines[-log_lines.STATEMENT :])):
            end = AnchoredLine(self.reader.lines, "", (), b"", 0, 0)
            kind = {"follows": False, "weak": True}
            list(self._unknown(_quoted(f"{CUT_OFF}: {at}"), end, _Before(end, lines[-1]), **kind))

    def _marked(self, kind: str) -> set[str]:
        """Return the issues that a mark was seen of."""
        return {id for marked, id in self._marks if marked == kind}

    def _drop_workers(self, text: str) -> None:
        """Look no more for the rank that a line is of."""
        if "Worker_TP" in text:
            for name in WORKERS:
                if name in text:
                    self.reader.drop(name)

    def _counted(self, name: str) -> Seen:
        """Return what is kept under a name, with how often it was seen."""
        kept = self._kept[name]
        return replace(kept, count=kept.count + self._more.pop(name, 0))

    def _came_up(self) -> None:
        """Mark earlier errors as overcome: the server is up, so they stopped nothing."""
        self._up, self._stopped = True, False
        for name, seen in list(self._kept.items()):
            if seen.finding.severity == "error" or seen.follows:
                self._past.append(replace(self._counted(name), overcome=True))
                del self._kept[name]
        del self._past[MOST:]
        self._names.clear()
        self._alike.clear()

    def _look(self, candidate: AnchoredLine, raw: str) -> None:
        line = log_lines.read(raw)
        if "orker" in raw or "rank " in raw or "TP" in line.speaker:  # as in all names of ranks
            self._hear(line)
        if CHAINED in line.text:
            self._chained = self._error
        self._marks |= marks_in(line.text)
        key = line.text[:SHOWN]
        names = self._names[key] if key in self._names else self._of_flood(key)
        if names is None:
            names = tuple(self._judge(candidate, line))
            self._remember(key, names)
        else:
            for name in names:
                self._more[name] = self._more.get(name, 0) + 1 + line.repeats

    def _of_flood(self, key: str) -> tuple[str, ...] | None:
        """Return what lines with the same words of known issues showed, where many showed it."""
        names, times = self._alike.get(words_in(key), ((), 0))
        return names if times >= TRACES else None

    def _remember(self, key: str, names: tuple[str, ...]) -> None:
        if len(self._names) < REMEMBERED:
            self._names[key] = names
        words = words_in(key)
        before, times = self._alike.get(words, (names, 0))
        if words in self._alike or len(self._alike) < REMEMBERED:
            self._alike[words] = (names, times + 1 if before == names else 0)

    def _judge(self, candidate: AnchoredLine, line: log_lines.ParsedLine) -> Iterator[str]:
        """Keep what a line shows; yield the names under which it is kept."""
        before = _Before(candidate, line)

        @cache
        def trace() -> str:
            self._traces += 1
            return before.trace() if self._traces <= TRACES else ""

        if log_lines.is_quote(line.text):
            return
        if line.text.startswith("raise "):  # in a traceback: the error itself comes at its end
            line = replace(line, text=log_lines.raised(line.text, candidate.wrapped()[1:]))
        error = self._error_in(line, candidate)
        text = line.text if error in line.text else f"{line.text} {error}"
        issues = recognise(text, trace, self._marked("evidence"))
        begun, first = error, issues
        for glue in (" ", "") if error else ():  # a page keeps words whole, a terminal cuts them
            if _specific(issues):
                break
            wrapped = log_lines.joined(begun, line, candidate.wrapped(), glue)
            more = recognise(wrapped, trace, self._marked("evidence")) if wrapped != begun else []
            if _specific(more) or (more and issues is first and more != first):
                error, issues = wrapped, more
        echo = bool(error) and log_lines.is_echo(error)
        if not error or echo:
            issues = [issue for issue in issues if not issue.fallback]
        if not error and not issues:
            yield from self._complaint(line, candidate, before)
            return
        said = error or log_lines.whole(line.text, lambda: candidate.following)
        said = said if error != begun else _continued(said, candidate, line)
        at = log_lines.raised_at(trace()) if error and not echo else None
        if at is not None and log_lines.has_no_text(error):
            said = f"{error}: {at}"
        rank = 0 if error and not echo else 2 if echo else 1
        for issue in issues:
            yield self._keep_known(issue, said, candidate, before, rank)
        if not issues:
            yield from self._unknown(_quoted(said), candidate, before, at, follows=echo)

    def _error_in(self, line: log_lines.ParsedLine, candidate: AnchoredLine) -> str:
        """Return the error of a line; the one that it quotes where nothing else tells of it."""
        error = log_lines.error_in(line, lambda: candidate.following)
        return (not self._has_error() and log_lines.inner_error(error)) or error

    def _keep_known(
        self, issue: Issue, said: str, candidate: AnchoredLine, before: _Before, rank: int
    ) -> str:
        """Keep a known issue that a line shows; `rank` as of `_keep`."""
        name = self.reader.source.name
        found = issue.match(_quoted(said), name, in_log=True, line=said[:LONGEST])
        kind = {name: getattr(issue, name) for name in ("follows", "broad", "last_cause")}
        return self._keep(issue.id, found, candidate, before, rank, weak=issue.request, **kind)

    def _complaint(
        self, line: log_lines.ParsedLine, candidate: AnchoredLine, before: _Before
    ) -> Iterator[str]:
        """Keep a line that only looks like an error."""
        said = log_lines.complaint_in(line, lambda: candidate.following)
        faint = "" if said or self._up else log_lines.faint_complaint_in(line)
        if text := said or faint:
            kind = {"follows": log_lines.is_echo(text), "weak": True, "faint": bool(faint)}
            said = _continued(text, candidate, line)
            yield from self._unknown(_quoted(said), candidate, before, **kind)

    def _unknown(
        self,
        error: str,
        candidate: AnchoredLine,
        before: _Before,
        at: log_lines.RaisedAt | None = None,
        /,
        **kind: bool,
    ) -> Iterator[str]:
        """Keep an error that is not known; `kind` as of `Seen`.

        Args:
            at: where it was raised; None where nothing tells.
        """
        name, weak = f"error: {error}", kind.get("weak", False)
        if name not in self._kept and weak:
            self._weak += 1
        if name in self._kept or (len(self._kept) < MOST and (not weak or self._weak <= WEAK)):
            found = KnownIssueMatch(
                id="",
                severity="error",
                title="an error that is not among the known issues",
                found=error,
                cause=f"not known; it was raised in {at.place}" if at else "",
                fix="",
                source="",
                where=self.reader.source.name,
            )
            yield self._keep(name, found, candidate, before, 0, **kind)

    def _keep(
        self,
        name: str,
        found: KnownIssueMatch,
        candidate: AnchoredLine,
        before: _Before,
        rank: int,
        **kind: bool,
    ) -> str:
        """Keep the first sight, or a later one that says it better (the error, not its echo).

        Args:
            kind: `follows`, `broad`, `weak`, `faint` and `last_cause` of `Seen`.
        """
        kept = self._kept.get(name)
        if kept is None and self._stopped and kind.get("follows"):
            return name  # the server reports its engine as dead while it stops it itself
        if kept is None:
            order = (self.index, candidate.number)
            seen = Seen(found, before.at, candidate.number, order=order, serving=self._up, **kind)
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

    def last_lines(self) -> list[str]:
        """Return the last lines that say something, without prefixes."""
        said = [log_lines.read(raw).text for raw in self.reader.tail.splitlines()]
        return [text[:SHOWN] for text in said if text][-LAST:]

    def _hear(self, line: log_lines.ParsedLine) -> None:
        """Note which ranks speak."""
        if not self.start.engine and _SGLANG_RANKS.match(line.speaker):
            self.start.engine = SGLANG
        if line.speaker.startswith("RayWorker"):
            self.speakers[RAY] = self.speakers.get(RAY, 0) + 1
        for text in (line.speaker, line.text[:120]):
            if found := _RANK.search(text):
                name = f"rank {found[1]}"
                self.speakers[name] = self.speakers.get(name, 0) + 1


class _Before:
    """The lines before a line, read only when they are needed."""

    def __init__(self, candidate: AnchoredLine, line: log_lines.ParsedLine) -> None:
        self._candidate = candidate
        self._line = line

    def trace(self) -> str:
        """The last lines of the same speaker, as a traceback has them; of a process that Python's
        fault handler saw end, the frames that it wrote afterwards, the newest first.
        """
        if self._line.text.startswith("Fatal Python error: "):
            dump = map(log_lines.read, reversed(self._candidate.after(log_lines.TRACE)))
            return log_lines.trace([*dump], self._line.speaker).partition("\nCurrent thread ")[0]
        if not self._line.text or "Error" not in self._line.text:
            return ""
        passed = self._candidate.context().splitlines()[-log_lines.TRACE :]
        return log_lines.trace([log_lines.read(raw) for raw in passed], self._line.speaker)

    @property
    def at(self) -> str:
        """The line's time, or the last one before it."""
        if self._line.at:
            return self._line.at
        for raw in reversed(self._candidate.context().splitlines()[-log_lines.TRACE :]):
            if at := log_lines.read(raw).at:
                return at
        return ""


# The explanation of the logs of one launch, as the command line and `--json` show it.


@dataclass(frozen=True)
class ReadLog:
    """A log that was read."""

    name: str
    bytes: int
    lines: int


@dataclass
class Explanation(Document):
    """The result for one or more logs.

    Attributes:
        engine: whose logs they are, `vLLM` or `SGLang`; empty when no line says so.
        problems: the earliest real error first, then other errors by time, then warnings, then
            what only follows, then notes, then what the server got over.
        facts: what a healthy start tells.
        missing: what it would have told besides.
        logs: that were read.
        last: the last lines of the logs in which nothing was recognised, by name.
        unfinished: the server began to start and never took requests.
    """

    engine: str = ""
    problems: Hidden[list[Seen]] = field(default_factory=list)
    issues = derived(list[Seen], "problems")
    facts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    logs: list[ReadLog] = field(default_factory=list)
    last: dict[str, list[str]] = field(default_factory=dict)
    unfinished: Hidden[bool] = False
    next = derived(list[str], "next_steps")

    @printed
    def cause(self) -> Seen | None:
        """The root as far as these logs tell; an effect where the cause is in none of them."""
        return cause_of(self.problems)

    @printed
    def verdict(self) -> Verdict:
        """What can be said of the launch."""
        warned = any(p.finding.severity == "warning" and not p.overcome for p in self.problems)
        unfinished = self.unfinished and "end" not in self.facts
        return verdict_on(self.cause, unfinished=unfinished, warned=warned)

    @property
    def recognised(self) -> bool:
        """False where no line of these logs says anything of an engine."""
        return bool(self.engine or self.facts or self.problems)

    @property
    def next_steps(self) -> list[str]:
        """Where to look next; nothing where the cause is certain, or there is no error."""
        texts = log_lines.NEXT
        names = texts["after"].get(self.verdict, [])
        if self.verdict == "unknown" and self.engine:
            names = [*names, "narrow"]
        lacking = any("ranks" in text for text in self.missing)
        if names and (lacking or (self.verdict == "effects" and len(self.logs) == 1)):
            names = ["all-ranks", *names]
        if self.cause is not None and self.cause.finding.found.startswith(CUT_OFF):
            names = ["cut", *names]
        if names and any("NCCL" in p.finding.found for p in self.problems if not p.overcome):
            names = [*names, "nccl"]
        return [texts["step"][name] for name in names]
