"""What programs that keep logs put before a line: Compose, kubectl, Docker and the journal."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

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


def take(rest: str) -> tuple[str, str, str]:
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


def of_json(raw: str) -> str:
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
