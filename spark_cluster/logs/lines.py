"""A line of a log: its process, time, level and error.

Prefixes come in layers, of which any may be missing: `spark1 vllm: ` of `spark-cluster logs`,
`name | ` of Compose, `[pod/NAME/CONTAINER] ` of kubectl, Docker's time stamp, the journal's (see
`prefixes.py`), Ray's `(RayWorkerProc pid=112, ip=10.77.0.2) `, vLLM's `(EngineCore pid=518) ERROR
11-20 14:14:29 [core.py:1512] `, SGLang's `[2025-03-29 18:18:34 TP0] `.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from spark_cluster.logs import prefixes
from spark_cluster.logs.prefixes import moment

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
        raw = prefixes.of_json(raw)
    rest = (ANSI.sub("", raw) if "\x1b" in raw else raw).rstrip()
    stamp, at, rest = prefixes.take(rest)
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
