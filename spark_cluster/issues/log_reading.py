"""The reader of logs of any length in constant memory: finds the lines that may matter.

A log is read in pieces, and each piece is searched for literals ("anchors") before any line of it
is looked at, because almost all lines of a long log are routine; those that differ in digits only
are searched once. Giant lines are cut, bytes that are no text are replaced.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Annotated, Literal, cast

from pydantic import Field

from spark_cluster.config.schema import Document, Flat, Hidden, derived, printed
from spark_cluster.config.yamlfile import open_foreign
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.issues import log_lines
from spark_cluster.issues.entries import ORDER, KnownIssueMatch, catalogue

CHUNK = 1 << 20
BEFORE = 16 << 10
"""Bytes before a line that can be read: a traceback, the last time stamp."""

TAIL = 4 << 10
"""Bytes at the end of a log that are kept for when nothing else is found in it."""

WRAPPED = 6
"""Lines after an error that may be the rest of it."""

MOST_FILES = 5000
"""Logs of a folder; a session of Ray has about a hundred."""

LOGS = "files whose names end with .log, .out, .err, .txt or .gz"
_LOG = re.compile(r"\.(?:log|out|err|txt)(?:\.\d+)?(?:\.gz)?$")

LONGEST_LINE = 256 << 10
"""A longer line is cut into pieces of this size."""

DECODED = 8 << 10
"""Bytes of a line that are looked at: SchedulerOutput dumps have 100 kB, the news is in front."""

BEGINNING = 6
"""Bytes by which anchors are looked up."""

_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})


@dataclass(frozen=True)
class LogSource:
    """A log: how it is called, and how it is opened."""

    name: str
    open: Callable[[], IO[bytes]]


@dataclass(slots=True)
class AnchoredLine:
    """A line with an anchor in it; what stands around it is decoded only when it is asked for.

    Attributes:
        number: of the line in the log, from 1.
        text: the line, raw.
        anchors: those that were found in it.
    """

    number: int
    text: str
    anchors: tuple[bytes, ...]
    _blob: bytes
    _begin: int
    _stop: int

    @property
    def following(self) -> str:
        """The next two lines, raw."""
        return "\n".join(self.after(2))

    def wrapped(self) -> list[str]:
        """Return the line and the next ones, which may be the rest of it."""
        return [self.text, *self.after(WRAPPED)]

    def after(self, count: int) -> list[str]:
        """Return the next lines, raw, as far as they are read."""
        begin = self._stop + 1
        lines = self._blob[begin : begin + count * DECODED].split(b"\n", count)[:count]
        return [line[:DECODED].decode("utf-8", "replace") for line in lines]

    def context(self) -> str:
        """The text before it, as far as it is kept."""
        start = max(0, self._begin - BEFORE)
        return self._blob[start : self._begin].decode("utf-8", "replace")


def _text(blob: bytes, begin: int, stop: int) -> str:
    return blob[begin : min(stop, begin + DECODED)].decode("utf-8", "replace")


def of_file(name: str, title: str = "") -> LogSource:
    """A file, or standard input for `-`; it is called `title`, by default as it was given."""
    if name == "-":
        return LogSource("standard input", lambda: sys.stdin.buffer)
    expected = "a text log, a .gz of one, or - for standard input"
    return LogSource(title or name, lambda: open_foreign(Path(name).expanduser(), expected))


def sources(names: Iterable[str], *, short: bool = False) -> list[LogSource]:
    """Files to read, in the order given; for a folder those logs in it that are not empty.

    Args:
        short: call them by the end of their path that tells them apart.

    Raises:
        UsageError: none is given, or one twice.
        InvalidFile: a folder has no log, or too many.
    """
    given = [name for one in names for name in _files_of(one)]
    doubled = next((name for name in given if given.count(name) > 1), None)
    if doubled is not None:
        raise UsageError(f"{doubled} is given twice")
    if not given:
        raise UsageError("no log is given", hint="give files, or - for standard input")
    return [of_file(name, _title(name, given) if short else "") for name in given]


def _files_of(name: str) -> list[str]:
    """Return the logs under a folder, by path; the name itself where it is none.

    Links in it are not followed: it may come from another machine.
    """
    folder = Path(name).expanduser()
    if name == "-" or not folder.is_dir():
        return [name]
    found: list[str] = []
    for here, _folders, files in os.walk(folder):
        paths = [Path(here, file) for file in files if _LOG.search(file)]
        found += [str(path) for path in paths if not path.is_symlink() and _has_text(path)]
        if len(found) > MOST_FILES:
            raise InvalidFile(
                f"more than {MOST_FILES} logs in this folder",
                where=name,
                hint="give the folder of one session, such as /tmp/ray/session_latest/logs",
            )
    if not found:
        raise InvalidFile("no log in this folder", where=name, hint=f"expected {LOGS}")
    return sorted(found)


def _has_text(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


def _title(name: str, given: list[str]) -> str:
    """The shortest end of a path that no other one has.

    >>> [_title(n, ["/a/x/v.log", "/a/y/v.log"]) for n in ("/a/x/v.log", "/a/y/v.log")]
    ['x/v.log', 'y/v.log']
    """
    parts = Path(name).parts
    for length in range(1, len(parts)):
        end = parts[-length:]
        if sum(Path(other).parts[-length:] == end for other in given) == 1:
            return "/".join(end)
    return name


class Reader:
    """A single pass over a log.

    Args:
        anchors: literals; a line with none of them is never looked at. `drop` takes one out while
            reading goes on.
    """

    def __init__(self, source: LogSource, anchors: Iterable[str]) -> None:
        self.source = source
        self.bytes = 0
        self.lines = 0
        self.tail = ""
        searched = _encoded(frozenset(anchors))
        self._anchors = set(searched)
        self._shapes = Shapes(searched)

    def drop(self, anchor: str) -> None:
        """Look for a literal no more, unless it stands for longer ones."""
        self._anchors.discard(anchor.encode())

    def standing_for(self, literals: Iterable[str]) -> frozenset[bytes]:
        """The anchors of which one is in each line that has one of these literals."""
        wanted = frozenset(literal.encode() for literal in literals)
        return _standing_for(frozenset(self._anchors), wanted)

    def candidates(self) -> Iterator[AnchoredLine]:
        """Lines with an anchor, in order.

        Raises:
            InvalidFile: it cannot be read, or is no text.
        """
        context = rest = b""
        with _opened(self.source) as stream:
            while True:
                data = stream.read(CHUNK) + stream.readline(LONGEST_LINE)
                if not self.bytes:
                    _must_be_text(data, self.source.name)
                self.bytes += len(data)
                is_of_page = len(data) < CHUNK and data[:1] != b"{"  # nor JSON, nor a long log
                for page, typed in log_lines.TYPESET if is_of_page else ():
                    data = data.replace(page, typed)
                blob = context + rest + data
                start = len(context)
                end = blob.rfind(b"\n", start, -1) + 1 if data else len(blob)
                if not end:  # a single line, of which more may come
                    end = len(blob) if len(blob) - start > LONGEST_LINE else start
                yield from self._search(blob, start, end)
                if not data:
                    self.tail = blob[-TAIL:].decode("utf-8", "replace")
                    return
                context, rest = blob[max(0, end - BEFORE) : end], blob[end:]

    def _search(self, blob: bytes, start: int, end: int) -> Iterator[AnchoredLine]:
        counted = start
        for begin, anchors in sorted(self._hits(blob, start, end).items()):
            self.lines += blob.count(b"\n", counted, begin)
            counted = begin
            stop = blob.find(b"\n", begin)
            stop = len(blob) if stop < 0 else stop
            yield AnchoredLine(self.lines + 1, _text(blob, begin, stop), anchors, blob, begin, stop)
        self.lines += blob.count(b"\n", counted, end)

    def _hits(self, blob: bytes, start: int, end: int) -> dict[int, tuple[bytes, ...]]:
        """Return where lines with an anchor begin, and which anchors they have."""
        lines = blob[start:end].split(b"\n")
        shapes = [line.translate(None, DIGITS) for line in lines]
        known = self._shapes.anchors_of(shapes)
        if not any(known.values()):
            return {}
        found: dict[int, tuple[bytes, ...]] = {}
        begins = accumulate((len(line) + 1 for line in lines), initial=start)
        for begin, line, shape in zip(begins, lines, shapes, strict=False):
            if possible := known[shape]:
                here = tuple(a for a in possible if a in self._anchors and a in line)
                if here:
                    found[begin] = here
        return found


@lru_cache(maxsize=8)
def _encoded(anchors: frozenset[str]) -> frozenset[bytes]:
    """Return the least anchors as bytes.

    A session of Ray has a hundred logs: those of the last sets are remembered.
    """
    return minimal(frozenset(anchor.encode() for anchor in anchors))


def minimal(anchors: frozenset[bytes]) -> frozenset[bytes]:
    """Return the anchors without those that contain another one.

    Anchors are looked up by how they begin, for the catalogue has thousands of them.

    >>> sorted(minimal(frozenset({b"Error", b"KeyError", b"KV cache"})))
    [b'Error', b'KV cache']
    """
    begin = defaultdict[bytes, list[bytes]](list)
    for anchor in anchors:
        begin[anchor[:BEGINNING]].append(anchor)
    lengths = {len(start) for start in begin}

    def has_another(anchor: bytes) -> bool:
        return any(
            other != anchor and anchor.startswith(other, at)
            for at in range(len(anchor))
            for length in lengths
            for other in begin.get(anchor[at : at + length], ())
        )

    return frozenset(anchor for anchor in anchors if not has_another(anchor))


@lru_cache(maxsize=8)
def _standing_for(anchors: frozenset[bytes], wanted: frozenset[bytes]) -> frozenset[bytes]:
    return frozenset(a for a in anchors if any(a in literal for literal in wanted))


@contextmanager
def _opened(source: LogSource) -> Iterator[IO[bytes]]:
    """Open the stream, unpacked when it is a .gz; errors name the file."""
    try:
        with source.open() as raw:
            peek = getattr(raw, "peek", bytes)
            yield cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if peek(2)[:2] == _GZIP else raw
    except FileNotFoundError:
        raise InvalidFile("no such file", where=source.name) from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidFile(f"a damaged .gz: {error}", where=source.name) from None
    except OSError as error:
        raise InvalidFile(f"cannot be read: {error.strerror}", where=source.name) from None


def _must_be_text(data: bytes, name: str) -> None:
    """Raises:
    InvalidFile: it is no text.
    """
    if data.startswith(_UTF16):
        raise InvalidFile(
            "this is UTF-16, as PowerShell writes it",
            where=name,
            hint=f"iconv -f UTF-16 -t UTF-8 {name} | spark-cluster explain -",
        )
    head = data[: 64 << 10]
    strange = len(head) - len(head.translate(None, _CONTROL))
    if b"\0" in head[:4096] or strange > len(head) // 20:
        raise InvalidFile(
            "this is a binary file",
            where=name,
            hint="expected a text log, such as `docker logs --timestamps spark-vllm` prints",
        )


# Lines that are alike but for their digits, searched once for all anchors.
#
# The lines of a long log differ in times, ports and rates. Without digits few are left, and a piece
# of the log is searched for hundreds of literals only as far as it has something new.

DIGITS = b"0123456789"

MOST = 20_000
"""Shapes that are remembered."""

LONGEST = 500
"""Bytes of a shape that is remembered."""

Anchors = tuple[bytes, ...]


_WORD = re.compile(rb"[A-Za-z]+")
_WORD_WITHIN = re.compile(rb"(?<=[^A-Za-z])[A-Za-z]+(?=[^A-Za-z])")


@lru_cache(maxsize=8)
def _by_word(anchors: frozenset[bytes]) -> Mapping[bytes, list[tuple[bytes, Anchors]]]:
    """Return the anchors by their own shapes, and these by a word that texts with them have."""
    by_shape = defaultdict[bytes, Anchors](tuple)
    for anchor in anchors:
        by_shape[anchor.translate(None, DIGITS)] += (anchor,)
    found = defaultdict[bytes, list[tuple[bytes, Anchors]]](list)
    for shape, of_shape in by_shape.items():
        found[max(_WORD_WITHIN.findall(shape), key=len, default=b"")].append((shape, of_shape))
    return found


class Shapes:
    """What the shapes of lines may contain.

    Args:
        anchors: literals; a line can have only those whose own shape is in the line's.
    """

    def __init__(self, anchors: Iterable[bytes]) -> None:
        self._by_word = _by_word(frozenset(anchors))
        self._always = dict(self._by_word[b""]).get(b"", ())  # of digits only
        self._known: dict[bytes, Anchors] = {}

    def anchors_of(self, shapes: Iterable[bytes]) -> dict[bytes, Anchors]:
        """Return the anchors that lines of each of these shapes can have.

        Args:
            shapes: lines without their digits and without line breaks.
        """
        wanted = set(shapes)
        found = {shape: self._known[shape] for shape in wanted if shape in self._known}
        fresh = self._search([shape for shape in wanted if shape not in found])
        if len(self._known) + len(fresh) > MOST:
            self._known.clear()
        self._known.update((s, a) for s, a in fresh.items() if len(s) <= LONGEST)
        return {**found, **fresh}

    def _search(self, shapes: list[bytes]) -> dict[bytes, Anchors]:
        """Search shapes that were not seen before, all in one text: that is what is quick."""
        text = b"\n".join(shapes)
        found: dict[bytes, Anchors] = dict.fromkeys(shapes, self._always)
        if not text:
            return found
        words = self._by_word.keys() & {b"", *_WORD.findall(text)}
        for literal, anchors in chain.from_iterable(self._by_word[word] for word in words):
            at = text.find(literal) if literal else -1
            while at >= 0:
                begin = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                shape = text[begin:end]
                found[shape] = (*found[shape], *anchors)
                at = text.find(literal, end)
        return found


# What was seen in logs, and which of it is the cause.

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
        weak: it looks like an error, but is no exception; or it ended a request only.
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
    def may_stop(self) -> bool:
        """A certain issue that is logged as a warning, since it need not stop the engine."""
        if not self.certain or self.overcome or self.finding.severity != "warning":
            return False
        return catalogue()[self.finding.id].severity == "error"

    @property
    def rank(self) -> int:
        """How near to a cause it is: specific, an error, a refused request, a complaint, an effect,
        a mere word."""
        if self.follows:
            return 4 if self.known and self.finding.severity == "error" else 6
        if self.certain and not self.weak:
            return 0
        if self.faint:
            return 5
        if self.weak:
            return 2 if self.known else 3
        return 1


def cause_of(problems: Iterable[Seen]) -> Seen | None:
    """Return the root: the earliest specific issue, else the earliest error, else an effect; of
    errors at one time a known one.

    What only looks like an error gives way to a known issue that may stop the engine.

    An error that is not known goes before a known one that came much later, while the server was
    starting: that one may be its consequence.
    """
    wanted = [
        p for p in problems if not p.overcome and (p.finding.severity == "error" or p.follows)
    ]
    if not wanted:
        return None
    first = min(wanted, key=lambda p: (p.rank, p.at, not p.known, p.order))
    if first.weak and not first.known:
        wanted = [p for p in problems if p.may_stop] or [first]
        return min(wanted, key=lambda p: (p.at, p.order))
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
    return "cause" if cause.certain and not cause.may_stop else "likely"


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


def _first_error(cause: Seen, seen: Iterable[Seen]) -> Seen | None:
    """Return what the tools of a build's step complained of first, which says why it failed."""
    if not cause.known or not catalogue()[cause.finding.id].step:
        return None
    weak = (one for one in seen if one.weak and not one.known and one.order[0] == cause.order[0])
    return next((one for one in weak if log_lines.is_of_tool(one.finding.found)), None)


def _quoting(cause: Seen, first: Seen) -> Seen:
    """Return a cause that quotes another line."""
    finding = replace(cause.finding, found=first.finding.found)
    return replace(cause, finding=finding, number=first.number, at=first.at, order=first.order)


def merged(found: Sequence[Seen]) -> list[Seen]:
    """Return what all logs show: each issue once, the cause first, effects and notes last.

    What a general issue says of the line of a known cause is left out.
    """
    once: dict[tuple[str, bool], Seen] = {}
    for seen in sorted(found, key=lambda s: (s.at, s.order)):
        name = (seen.finding.id or seen.finding.found, seen.overcome)
        first = once.get(name)
        once[name] = seen if first is None else replace(first, count=first.count + seen.count)
    cause = cause_of(once.values())
    if cause is not None and (first := _first_error(cause, once.values())):
        del once[first.finding.found, first.overcome]
        cause = _quoting(cause, first)
        once[cause.finding.id, cause.overcome] = cause
    of_cause = cause.where if cause is not None and cause.known else ""
    kept = [s for s in once.values() if s is cause or not (s.broad and s.where == of_cause)]
    found = [seen if seen is cause else _after_cause(seen, cause) for seen in kept]

    def place(seen: Seen) -> tuple[bool, int, str, tuple[int, int]]:
        kind = ORDER[seen.finding.severity] + (2 if seen.follows else 0)
        kind += len(ORDER) + 2 if seen.overcome else 0
        return seen is not cause, kind, seen.at, seen.order

    return sorted(found, key=place)
