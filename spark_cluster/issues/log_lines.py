"""A line of a log: its process, time, level and error.

Prefixes come in layers, of which any may be missing: `spark1 vllm: ` of `spark-cluster logs`,
`name | ` of Compose, `[pod/NAME/CONTAINER] ` of kubectl, Docker's time stamp, the journal's, Ray's
`(RayWorkerProc pid=112, ip=10.77.0.2) `, vLLM's `(EngineCore pid=518) ERROR 11-20 14:14:29
[core.py:1512] `, SGLang's `[2025-03-29 18:18:34 TP0] `. They are patterns of `lines.toml`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TORCHRUN = re.compile(r"^(?:\[rank\d{1,4}\]:)+ ?(?!\[)")
_SPEAKER = re.compile(r"^\(([A-Za-z_][\w:.-]*(?: [^()]{0,80})?)\) ?")
_SGLANG = re.compile(
    r"^\[\d{4}-(?P<day>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))?"
    r"(?P<ranks>(?: [A-Z]{2,4}\d{1,4}){0,6})\] ?"
)
"""`[2025-03-29 18:18:34 TP0] `, with the ranks of the process; uvicorn's lines have none."""
_FILE = tomllib.loads(Path(__file__).with_name("log_lines.toml").read_text(encoding="utf-8"))
_KEEPERS, _LOGGERS = (tuple(map(re.compile, _FILE[name])) for name in ("keepers", "loggers"))
_WRITTEN_ANSI, _ERROR, _GOES_ON, _CUT, _LOWER, _REPORT = (
    re.compile("|".join(_FILE[name]))
    for name in ("written_ansi", "error", "goes_on", "cut", "lower", "report")
)
_ECHO, _COMPLAINT, _TOOL, _FAINT, _PASTED, _NOISE, _QUOTES = (
    re.compile("|".join(_FILE[name]))
    for name in ("echo", "complaint", "tool", "faint", "pasted", "noise", "quotes")
)
_INNER, _NAME_ONLY, _FRAME, _VIEWERS = (
    re.compile("|".join(_FILE[name])) for name in ("inner", "bare", "frame", "viewers")
)
_ENGINE = re.compile(r"(?:.*/)?(?:vllm|sglang)/")
_PACKAGES = re.compile(r"^.*/(?:site-packages|dist-packages|python(?=/sglang))/")
ANCHORS: tuple[str, ...] = tuple(_FILE["anchors"])
"""Literals of which every line has one that looks like an error without being an exception."""
TYPESET = [(page.encode(), typed.encode()) for page, typed in _FILE["typeset"].items()]
NEXT: dict[str, dict[str, Any]] = _FILE["next"]
"""Where to look next when logs do not tell the cause: `step` has texts by name, `after` the names
by verdict."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LETTERS: Mapping[str | None, str] = _FILE["letters"]
_REPEATED = re.compile(r" ?\[repeated (\d{1,9})x across cluster\].*$")

_BARE = re.compile(r"(?:^|>>> |\] )((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))(:?)$")
"""An exception without a text, alone on its line, as a traceback ends with it; with a colon its
text may begin in the next line."""

_OPEN = re.compile(r"^.{44,}[^.!?)\]}'\"]$")
"""A line that is long enough to have been wrapped, and does not end a sentence."""
_RAISE = re.compile(r"raise ((?:\w+\.)*[A-Z]\w+)\([rf]?[\"'](.{8,500})[\"']\)?$")

HARMLESS = ("DEBUG", "INFO", "WARNING")
"""Levels below an error; such a line may quote one."""


TRACE = 60
"""Lines before an error that may be its traceback."""

STATEMENT = 6
"""Lines of a traceback from its last frame to its error; a statement may take several."""


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """A line without its prefixes.

    Attributes:
        text: what is said.
        at: `11-20 14:14:29.000000`, which sorts by time within a year; empty when it has none.
        stamp: Docker's own time stamp as it stands; empty without one.
        speaker: Ray's and vLLM's names of the process, the outer first.
        level: DEBUG to CRITICAL; empty when it does not say.
        repeats: how many times more Ray has seen it on the cluster.
        indented: the text begins with a blank, as the lines of a traceback between its first and
            its last do.
    """

    text: str
    at: str = ""
    stamp: str = ""
    speaker: str = ""
    level: str = ""
    repeats: int = 0
    indented: bool = field(default=False, compare=False)


def read(raw: str) -> ParsedLine:
    """Return the parts of a line; never fails."""
    if raw[:1] == "{":
        raw = text_of_json(raw)
    rest = _WRITTEN_ANSI.sub("", (ANSI.sub("", raw) if "\x1b" in raw else raw).rstrip())
    stamp, at, rest = take_stamp(rest)
    indented = rest[:1] in (" ", "\t")
    rest = rest.strip()
    speakers = []
    while rest[:1] == "(" and (speaker := _SPEAKER.match(rest)):
        speakers.append(speaker[1])
        rest = rest[speaker.end() :]
    indented = indented or rest[:1] == " "
    level, own, rest = _stamped(rest.strip())
    indented = indented or rest[:1] == " "
    if not own and rest[:2] == "[2" and (found := _SGLANG.match(rest)):
        own, speakers = _moment(found.groupdict()), [*speakers, *found["ranks"].split()]
        level, _, rest = _stamped(rest[found.end() :])
    if rest[:5] == "[rank":
        rest = _TORCHRUN.sub("", rest).lstrip()
    if rest[:2] == "| ":  # of a group of exceptions, or after the time of a viewer of logs
        inner, moment, rest = _stamped(rest[2:].lstrip())
        level, own = level or inner, own or moment
    repeats = 0
    if "[repeated " in rest and (repeated := _REPEATED.search(rest)):
        repeats, rest = int(repeated[1]), rest[: repeated.start()]
    speaker_names = " ".join(speakers)
    return ParsedLine(rest.strip(), at or own, stamp, speaker_names, level, repeats, indented)


def _stamped(rest: str) -> tuple[str, str, str]:
    """Return level, time and text of a line as a logger writes it."""
    for pattern in _LOGGERS:
        if found := pattern.match(rest):
            told = found.groupdict()
            level = told.get("level") or _LETTERS.get(told.get("letter"), "")
            return level, _moment(told), rest[found.end() :]
    return "", "", rest


def error_in(line: ParsedLine, following: Callable[[], str] = str) -> str:
    """Return the error that a line reports; empty for none.

    Args:
        following: gives the next line, raw; pydantic puts what is wrong there.
    """
    if line.level in HARMLESS:
        return ""
    if bare := _BARE.search(line.text):
        text = read(following().partition("\n")[0]).text if bare[2] else ""
        return f"{bare[1]}: {text}" if text else bare[1]
    match = _ERROR.search(line.text)
    if match is None:
        return ""
    return whole(next(group for group in match.groups() if group), following)


def whole(error: str, following: Callable[[], str]) -> str:
    """Return an error with the next line, where that says what is wrong; with the next two where
    the first is only the field that pydantic refuses.
    """
    if not _GOES_ON.search(error):
        return error
    more = [read(raw).text.partition(" [type=")[0].strip() for raw in following().split("\n")]
    told = more if more[0].isidentifier() else more[:1]
    return ": ".join([error.removesuffix(":"), *told])


def joined(
    text: str, line: ParsedLine, raws: Sequence[str], glue: str = " ", *, certain: bool = False
) -> str:
    """Return the text of a line with those lines over which a page, a terminal or its program has
    broken it.

    Args:
        raws: the line and the next ones with their prefixes, which take their part of the width.
            One with a prefix of another process or with another time, or with an error, is not of
            it; nor is what comes after the end of a sentence, but for the reason of a refusal.
        glue: what joins two lines; empty where a terminal has cut words.
        certain: take only what shows by its words that the sentence goes on, as a quote needs it.
    """
    raw = raws[0]
    before = _prefix(raw, line)
    for after in raws[1:]:
        more = read(after)
        marked = more.at or more.level or more.speaker not in ("", line.speaker)
        foreign = marked and _prefix(after, more) != before
        if foreign or error_in(more) or not more.text or _NOISE.match(more.text):
            break
        cut = not certain or _CUT.search(text) or _LOWER.match(more.text)
        if not more.text.startswith("Reason") and not (cut and _OPEN.search(raw)):
            break
        raw, text = raw + after, f"{text}{glue}{more.text}"
    return text


def _prefix(raw: str, line: ParsedLine) -> str:
    """Return what stands before the text of a line; vLLM repeats it on each line of a message."""
    return raw.rstrip().removesuffix(line.text).rstrip()


def raised(source: str, following: Iterable[str]) -> str:
    """Return the error of a traceback's last source line, `raise RuntimeError("...")`, where the
    log ends with it; empty where the error itself follows.
    """
    found = _RAISE.match(source)
    goes_on = any(raw.strip(" ^~") and read(raw).text.strip("^~ ") for raw in following)
    return "" if found is None or goes_on else f"{found[1]}: {found[2]}"


def is_quote(text: str) -> bool:
    """Return True for a line that quotes a request, an answer or a chat template."""
    return _QUOTES.match(text) is not None


def is_of_tool(text: str) -> bool:
    """Return True for an error of a compiler, an installer or a download."""
    return _TOOL.search(text) is not None


def is_echo(text: str) -> bool:
    """Return True for an error that merely follows from an earlier one."""
    return _ECHO.search(text) is not None


@dataclass(frozen=True, slots=True)
class LogError:
    """An error, its line, and what the same process wrote just before."""

    line: ParsedLine
    text: str
    before: str = ""


def errors_of(log: str) -> Iterator[LogError]:
    """Yield the errors of a text in order; a line without a time has the previous line's."""
    raw = log.splitlines()
    last = ""
    passed: list[ParsedLine] = []
    for index, one in enumerate(raw):
        line = read(one)
        line, last = (line, line.at) if line.at else (replace(line, at=last), last)
        text = error_in(line, lambda at=index + 1: raw[at] if at < len(raw) else "")  # type: ignore[misc]
        if text:
            yield LogError(line, text, trace(passed, line.speaker))
        passed.append(line)


def trace(passed: list[ParsedLine], speaker: str) -> str:
    """Return the last lines of a process, as a traceback has them."""
    return "\n".join(line.text for line in passed[-TRACE:] if line.speaker == speaker)


def inner_error(error: str) -> str:
    """Return the error of another process that one quotes; empty where it quotes none."""
    found = _INNER.search(error)
    return f"RuntimeError: {found[1]}" if found else ""


def has_no_text(error: str) -> bool:
    """Return True for an exception that is only a name, as a failed `assert` mostly is."""
    return _NAME_ONLY.match(error) is not None


@dataclass(frozen=True, slots=True)
class RaisedAt:
    """Where an error was raised, by the last frame of its traceback.

    Attributes:
        place: `vllm/v1/core/sched/scheduler.py, in schedule`, and what of the engine called it.
        source: the statement; empty where the traceback does not show it.
    """

    place: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.source} ({self.place})" if self.source else self.place


def raised_at(trace: str) -> RaisedAt | None:
    """Return where a traceback ends, or the assertion where its frames are left out; None where a
    text ends with neither.
    """
    lines = trace.splitlines()
    said = [text for text in lines if text.strip("^~ ")]
    if said and said[-1].startswith("assert ") and not any(map(_FRAME.match, lines)):
        return RaisedAt("a file that the log does not name", said[-1])
    frames = {n: frame for n, text in enumerate(lines) if (frame := _FRAME.match(text))}
    last = max(frames, default=-1)
    if not frames or len(lines) - last > STATEMENT:
        return None
    source = next((text for text in lines[last + 1 :] if text.strip("^~ ")), "")
    places = [f"{_PACKAGES.sub('', f['file'])}, in {f['name']}" for f in frames.values()]
    engine = [place for place in places if _ENGINE.match(place)]
    called = f", called by {engine[-1]}" if engine and engine[-1] != places[-1] else ""
    return RaisedAt(places[-1] + called, source)


def pasted_complaint_in(raw: str) -> str:
    """Return what a line of a short pasted text may complain of, with words that routine lines of
    whole logs have as well.
    """
    line = read(raw)
    return line.text if line.level not in HARMLESS and _PASTED.search(line.text) else ""


def faint_complaint_in(line: ParsedLine) -> str:
    """Return what a line may complain of, where nothing else is found."""
    text = line.text
    indented = line.indented and not _REPORT.match(text)
    if line.level or indented or not text or _NOISE.match(text) or "NCCL INFO" in text:
        return ""
    return text if _FAINT.search(text) else ""


def complaint_in(line: ParsedLine, following: Callable[[], str] = str) -> str:
    """Return what a line complains of; empty when it does not look like an error.

    Args:
        following: as of `error_in`.
    """
    text = line.text
    if line.level in HARMLESS or line.indented or not text or _NOISE.match(text):
        return ""
    if line.level or _COMPLAINT.search(text):
        return whole(text, following)
    return ""


# What programs that keep or show logs put before a line: Compose, kubectl, Docker, the journal.


def _moment(told: Mapping[str, str | None]) -> str:
    """Return `11-20 14:14:29.000000`, which sorts by time within a year; empty without a time."""
    if not told.get("time"):
        return ""
    month, date = told.get("month") or "", told.get("date") or "0"
    number = _MONTHS.index(month) + 1 if month in _MONTHS else month
    day = told.get("day") or f"{number:>02}-{int(date):02}"
    return f"{day} {told['time']}.{(told.get('fraction') or '')[:6].ljust(6, '0')}"


def take_stamp(rest: str) -> tuple[str, str, str]:
    """Return the time stamp as it stands, the time as `_moment`, and the line without both.

    The stamp is empty for the journal's own forms, which cannot be passed to `docker logs`.
    """
    if prefix := _VIEWERS.match(rest):
        rest = rest[prefix.end() :]
    for pattern in _KEEPERS:
        if found := pattern.match(rest):
            told = found.groupdict()
            return told.get("stamp") or "", _moment(told), rest[found.end() :]
    return "", "", rest


def text_of_json(raw: str) -> str:
    """Return a line of Docker's own file, or of `journalctl -o json`, as a stamped line.

    Anything else comes back as it is.
    """
    if '"log":' not in raw[:200] and '"MESSAGE"' not in raw:
        return raw
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(found, dict):
        return raw
    if isinstance(found.get("log"), str) and isinstance(found.get("time"), str):
        return f"{found['time']} {found['log']}"
    return _of_journal(found) or raw


def _of_journal(entry: dict[str, Any]) -> str:
    """Return an entry of the journal with its time; empty when it is none.

    A message that is no UTF-8 is a list of bytes there (`systemd.journal-fields(7)`).
    """
    message = entry.get("MESSAGE")
    if isinstance(message, list) and all(isinstance(b, int) and 0 <= b < 256 for b in message):
        message = bytes(message).decode("utf-8", "replace")
    if not isinstance(message, str):
        return ""
    try:
        since = int(str(entry["__REALTIME_TIMESTAMP"])[:17])  # microseconds
        at = datetime.fromtimestamp(since / 1_000_000, tz=UTC)
    except (KeyError, ValueError, OverflowError, OSError):
        return message
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}Z {message}"
