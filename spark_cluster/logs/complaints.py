"""Lines that look like an error without being an exception: of shells, compilers, NCCL and Docker.

They are weaker signs than an exception: what a program logs as an error need not end it.
"""

from __future__ import annotations

import re

from spark_cluster.logs.lines import HARMLESS, ParsedLine

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
