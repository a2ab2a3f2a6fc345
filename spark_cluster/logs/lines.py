"""A line of a log: its process, time, level and error.

Prefixes come in layers, of which any may be missing: `spark1 vllm: ` of `spark-cluster logs`,
`name | ` of Compose, `[pod/NAME/CONTAINER] ` of kubectl, Docker's time stamp, the journal's (see
`prefixes.py`), Ray's `(RayWorkerProc pid=112, ip=10.77.0.2) `, vLLM's `(EngineCore pid=518) ERROR
11-20 14:14:29 [core.py:1512] `, SGLang's `[2025-03-29 18:18:34 TP0] `.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_SPEAKER = re.compile(r"^\(([A-Za-z_][\w:.-]*(?: [^()]{0,80})?)\) ?")
_VLLM = re.compile(
    r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) +(\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?"
    r"(?: +(?:\[[^\]]{1,120}\]|[\w./-]{1,80}\.py:\d{1,6}\]))? ?"
)
_PYTHON = re.compile(
    r"^\d{4}-(\d\d-\d\d) (\d\d:\d\d:\d\d)(?:[,.](\d+))?[\s-]+"
    r"(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b[\s:-]*)?"
)
_SGLANG = re.compile(
    r"^\[\d{4}-(\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?((?: [A-Z]{2,4}\d{1,4}){0,6})\] ?"
)
"""`[2025-03-29 18:18:34 TP0] `, with the ranks of the process; uvicorn's lines have none."""
_TORCH = re.compile(r"^\[?(?:rank\d+\]:\[?)?([DIWEF])(\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d+) ")
_RAY = re.compile(
    r"^\[(?:\([\w ]{1,40}\) )?\d{4}-(\d\d-\d\d) (\d\d:\d\d:\d\d)[,.](\d+) ([DIWECF]) \d+ \d+\] "
)
"""`[2025-06-13 01:49:41,730 E 1 1] `, of Ray's own processes, which are written in C++."""
_LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL):? ")
_FIRST = frozenset("DIWECF[r")
"""How lines of loggers begin, besides with a digit: most lines of a traceback do not."""

_LETTERS = {
    "D": "DEBUG",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "C": "CRITICAL",
    "F": "CRITICAL",
}
_REPEATED = re.compile(r" ?\[repeated (\d{1,9})x across cluster\].*$")

_ERROR = re.compile(
    r"(?<![\w./])(?<!raise )((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b(?:\(.*\)|: .+))"
    r"|^(Exception: .+)"
    r"|(\w+ rank=\[\d+\] died unexpectedly|Worker proc \S+ died unexpectedly)"
    r"|(Segmentation fault|Segfault encountered|Fatal Python error: .+|\(core dumped\))"
)
_BARE = re.compile(r"(?:^|>>> |\] )((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))$")
"""An exception without a text, alone on its line, as a traceback ends with it."""

_ECHO = re.compile(
    r"Engine core initialization failed|root cause above|EngineDead|EngineCore encountered|"
    r"died unexpectedly|RayTaskError|ActorDiedError|WorkerCrashedError|Failed core proc|"
    r"CancelledError|Executor failed|Worker failed with error|root cause for the error|"
    r"ConnectionResetError|BrokenPipeError|RuntimeError: cancelled\b|"
    r"WorkerProc initialization failed|See stack trace for root cause|root cause\b.{0,20}\babove|"
    r"remote process exited or there was a network error|Connection closed by (?:remote )?peer|"
    r"recv\w*, i=\d|failed to recv, got 0 bytes|Connection was likely closed|"
    r"ninja: build stopped|Ninja build failed|subprocess\.CalledProcessError|"
    r"StopIteration\b|SystemExit|KeyboardInterrupt|Exception ignored in|"
    r"TensorRT-LLM version|EOFError: Ran out of input|engine process failed to start|"
    r"output_handler failed|Error in completion stream generator|check the stack trace above|"
    r"'NCCLCommunicator' object has no attribute|DistBackendError: NCCL error in|"
    r"A worker died or was killed|Set TORCHDYNAMO_VERBOSE|^TimeoutError$|"
    r"Error raised in subprocess:$|failed to be inspected\. Please check the logs|"
    r"Error in sys\.excepthook|Exception raised from|ActorUnavailable|RayActorError"
)
"""What follows from an earlier error in another process, and is never its cause."""

_GOES_ON = re.compile(r"validation errors? for \w+$|cluster was started with:$")
"""pydantic says in the next line what is wrong, and Ray which version the head has."""

HARMLESS = ("DEBUG", "INFO", "WARNING")
"""Levels below an error; such a line may quote one."""


TRACE = 60
"""Lines before an error that may be its traceback."""


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
    rest = (ANSI.sub("", raw) if "\x1b" in raw else raw).rstrip()
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
        own, speakers = moment(found[1], found[2], found[3]), [*speakers, *found[4].split()]
        level, _, rest = _stamped(rest[found.end() :])
    repeats = 0
    if "[repeated " in rest and (repeated := _REPEATED.search(rest)):
        repeats, rest = int(repeated[1]), rest[: repeated.start()]
    speaker_names = " ".join(speakers)
    return ParsedLine(rest.strip(), at or own, stamp, speaker_names, level, repeats, indented)


def _stamped(rest: str) -> tuple[str, str, str]:
    """Return level, time and text of a line as a logger writes it."""
    if not rest[:1].isdigit() and rest[:1] not in _FIRST:  # none of them can match
        return "", "", rest
    if found := _VLLM.match(rest):
        return found[1], moment(found[2], found[3], found[4]), rest[found.end() :]
    if found := _PYTHON.match(rest):
        return found[4] or "", moment(found[1], found[2], found[3]), rest[found.end() :]
    if found := _TORCH.match(rest):
        at = moment(f"{found[2]}-{found[3]}", found[4], found[5])
        letter = found[1]
    elif found := _RAY.match(rest):
        at, letter = moment(found[1], found[2], found[3]), found[4]
    elif found := _LEVEL.match(rest):
        return found[1], "", rest[found.end() :]
    else:
        return "", "", rest
    return _LETTERS[letter], at, rest[found.end() :]


def error_in(line: ParsedLine, following: Callable[[], str] = str) -> str:
    """Return the error that a line reports; empty for none.

    Args:
        following: gives the next line, raw; pydantic puts what is wrong there.
    """
    if line.level in HARMLESS:
        return ""
    if bare := _BARE.search(line.text):
        return bare[1]
    match = _ERROR.search(line.text)
    if match is None:
        return ""
    error = next(group for group in match.groups() if group)
    if _GOES_ON.search(error):
        error = (
            error.removesuffix(":") + ": " + read(following()).text.partition(" [type=")[0].strip()
        )
    return error


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


# Lines that look like an error without being an exception: of shells, compilers, NCCL and Docker.
#
# They are weaker signs than an exception: what a program logs as an error need not end it.

ANCHORS = (
    *("rror", "ERROR", "CRITICAL", "atal", "FATAL", "FAILED", "NCCL WARN", "Killed", "Abort"),
    *("command not found", "ermission denied", "No space left", "cannot open shared"),
    *("ailed", "killed", "died", " dead", "annot ", "nable to", "exceeds"),
    *("undefined symbol", "No such file", "terminate called", " E ", " C ", " F ", "oom", "OOM"),
)
"""Literals of which every such line has one."""

_NOISE = re.compile(
    r"^(?:Traceback \(most|File \"|\^+$|~|Dumping |The above exception|During handling of|"
    r"EngineCore (?:failed|encountered|hit)|WorkerProc (?:hit|failed)|Error executing method|"
    r"Invocation of \w+ method failed|CUDA kernel errors might|For debugging consider|"
    r"Compile with `|Search for `|Device-side assert|frame #\d|Exception raised from|Exception in|"
    r"Possible solutions|\d+\. |`ptxas` stderr|Repro command|Parent process exited|<frozen |"
    r"Stack dump|C\+\+ CapturedTraceback|\[?rank\d+\]?: ?(?:Traceback|File|frame)|#\d+ 0x)"
)
"""What surrounds an error, and is none itself."""

_COMPLAINT = re.compile(
    r"^(?:Error|error|ERROR|fatal|Fatal|FATAL|FAILED)\b ?[:\]]"
    r"|^[^\"'{]{0,80}?\b(?:fatal )?[Ee]rror {0,4}: "
    r"|\b(?:fatal|FATAL)\b(?: error)? {0,4}: |; error {1,4}: "
    r"|\bNCCL WARN |Error response from daemon|command not found$|[Pp]ermission denied"
    r"|No space left on device|cannot open shared object|undefined symbol: |No such file or dir"
    r"|Out of memory: Killed process|^Killed$|^Aborted\b|terminate called after throwing"
    r"|^Hunk #\d+ FAILED|\b(?:oom|OOM)[-_ ]?(?:kill|KILL)|\bsending SIG(?:TERM|KILL) to process\b"
)

_FAINT = re.compile(
    r"\b(?:[Ff]ailed|FAILED|killed|died|dead|[Cc]annot|[Uu]nable to|exceeds)\b|"
    r'"level": ?"(?:error|fatal)"'
)
"""Words that may mean an error where no line is plainer."""


def faint_complaint_in(line: ParsedLine) -> str:
    """Return what a line may complain of, where nothing else is found."""
    text = line.text
    if line.level or line.indented or not text or _NOISE.match(text) or "NCCL INFO" in text:
        return ""
    return text if _FAINT.search(text) else ""


def complaint_in(line: ParsedLine) -> str:
    """Return what a line complains of; empty when it does not look like an error."""
    text = line.text
    if line.level in HARMLESS or line.indented or not text or _NOISE.match(text):
        return ""
    if line.level or _COMPLAINT.search(text):
        return text
    return ""


# What programs that keep logs put before a line: Compose, kubectl, Docker and the journal.

_OURS = re.compile(r"^(?:[\w.-]+ (?:vllm|ray): |[\w.@/-]+ +\| ?|\[pod/[\w./-]{1,200}\] )")
_ISO = re.compile(r"^(\d{4}-(\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:[.,](\d+))?(?:Z|[+-]\d\d:?\d\d))(?: |$)")
"""Docker's, Podman's, Kubernetes', and that of `journalctl -o short-iso`."""
_SHORT = re.compile(r"^([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d)(?:\.(\d+))? ")
"""`journalctl`, also with `-o short-precise`."""
_FULL = re.compile(r"^[A-Z][a-z]{2} \d{4}-(\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))? [A-Z]\w{1,5} ")
"""`journalctl -o short-full`: `Fri 2026-11-20 14:14:29 CET `."""
_MONOTONIC = re.compile(r"^\[ *\d{1,9}\.\d{6}\] (?=[\w.-]+ [\w./@-]+(?:\[\d+\])?: )")
"""`journalctl -o short-monotonic`; it has no time of day."""
_UNIT = re.compile(r"^[\w.-]+ [\w./@-]+(?:\[\d+\])?: ")
_UNIT_OF_ISO = re.compile(r"^[\w.-]+ (?:[\w./@-]+\[\d+\]|kernel|systemd|earlyoom): ")
"""Stricter: after such a time stamp may as well stand what a program says (`vllm serve: error`)."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def moment(day: str, time: str, fraction: str | None) -> str:
    """Return `11-20 14:14:29.000000`, which sorts by time within a year."""
    return f"{day} {time}.{(fraction or '')[:6].ljust(6, '0')}"


def take_stamp(rest: str) -> tuple[str, str, str]:
    """Return the time stamp as it stands, the time as `moment`, and the line without both.

    The stamp is empty for the journal's own forms, which cannot be passed to `docker logs`.
    """
    if prefix := _OURS.match(rest):
        rest = rest[prefix.end() :]
    if rest[:1].isdigit() and (iso := _ISO.match(rest)):
        plain = rest[iso.end() :]
        return iso[1], moment(iso[2], iso[3], iso[4]), _UNIT_OF_ISO.sub("", plain, count=1)
    if rest[:3] in _MONTHS and (short := _SHORT.match(rest)):
        month = _MONTHS.index(short[1]) + 1
        at = moment(f"{month:02}-{int(short[2]):02}", short[3], short[4])
        return "", at, _UNIT.sub("", rest[short.end() :], count=1)
    if rest[3:4] == " " and (full := _FULL.match(rest)):
        return "", moment(full[1], full[2], full[3]), _UNIT.sub("", rest[full.end() :], count=1)
    if rest[:1] == "[" and (monotonic := _MONOTONIC.match(rest)):
        return "", "", _UNIT.sub("", rest[monotonic.end() :], count=1)
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
