"""What a change did, in words: a resource's attributes are the journal's, not a reader's."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_HASH = re.compile("[0-9a-f]{12}")
_PROGRAMS = ("Container", "Unit")
_RUNNING = ("running", "restarting")

_WORDS: Mapping[str, Mapping[Any, str]] = {
    "running": {True: "started", False: "stopped"},
    "enabled": {True: "enabled", False: "disabled"},
    "at_boot": {True: "enabled", False: "disabled"},
    "restart": {"none": "restarted"},
    "unit_file": {"as loaded": "systemd reloaded"},
    "in_force": {True: "in force", "yes": "in force", False: "lifted", "no": "lifted"},
    "exists": {True: "new", False: "removed"},
    "kind": {"absent": "removed"},
    "file": {"absent": "removed"},
    "loaded": {True: "loaded", False: "unloaded"},
    "complete": {True: "complete"},
}
"""Attribute, and the word for what it is now."""

_REASONS = {
    "spec": "new settings",
    "image": "new image",
    "rights": "its rights were others",
    "secrets": "new secrets",
    "at_boot": "enabled",
    "restart": "what it depends on has changed",
}
"""Why a program is made again, by the attribute that differed."""

_GROUPED = {"File": "files", "Directory": "folders"}

GROUP = 4
"""Files or folders that change alike, one after another, from which on they are one line."""


def summary(resource: str, changes: Mapping[str, Any]) -> str:
    """Return what was done to a resource.

    >>> summary("Service:docker", {"running": [False, True], "restart": ["pending", "none"]})
    'started'
    >>> summary("Container:web", {"state": ["running", "absent"], "secrets": ["others", "none"]})
    'stopped and removed, with its secrets'
    >>> summary("File:/etc/hosts", {"mode": ["0600", "0644"], "sha256": ["a", "b"]})
    'mode 0600 → 0644, new content'

    Args:
        resource: its id.
        changes: attribute to [was, is now].
    """
    kind = resource.partition(":")[0]
    if any(changes.get(name, [None])[0] == "absent" for name in ("kind", "state", "image")):
        return "new"
    if kind == "Command":
        return "done"
    if kind in _PROGRAMS:
        return _of_program(changes)
    left = {name: change for name, change in changes.items() if name != "restart"}
    shown = left if left.keys() & {"running"} else changes
    parts = [part for name, (was, now) in shown.items() for part in _of(kind, name, was, now)]
    return ", ".join(dict.fromkeys(parts))


def group_of(resource: str) -> str:
    """Return the plural of what is told in one line when several change alike; or nothing."""
    kind, _, path = resource.partition(":")
    return _GROUPED.get(kind, "") if path.startswith("/") else ""


def grouped(resources: Sequence[str]) -> str:
    """Return the subject of a line about several files or folders.

    >>> grouped(["File:/srv/m/a.json", "File:/srv/m/b/c.json"])
    '2 files in /srv/m'
    """
    common = os.path.commonpath([one.partition(":")[2] for one in resources])
    return f"{len(resources)} {group_of(resources[0])} in {common}"


def _of_program(changes: Mapping[str, Any]) -> str:
    was, now = changes.get("state", ("", ""))
    secrets = changes.get("secrets", ("", ""))[1]
    if now == "absent":
        ended = "stopped and removed" if was in _RUNNING else "removed"
        return f"{ended}, with its secrets" if secrets == "none" else ended
    if set(changes) == {"secrets"} and secrets == "none":
        return "its secrets removed"
    reasons = [text for name, text in _REASONS.items() if name in changes]
    reasons += [f"was {was}"] if was else []
    return f"made again: {', '.join(reasons)}"


def _of(kind: str, name: str, was: Any, now: Any) -> Iterator[str]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key, value in now.items():
            if was.get(key) != value:
                yield _plainly(f"{name} {key}", was.get(key), value)
    elif name == "sha256" or (name == "file" and _HASH.fullmatch(f"{was}{now}"[-12:])):
        yield "new" if was == "absent" else "new content"
    elif isinstance(now, (str, bool, type(None))) and now in _WORDS.get(name, {}):
        yield _WORDS[name][now]
    elif kind == "Package" and "absent" in (was, now):
        yield f"{name} {'removed' if now == 'absent' else 'installed'}"
    elif name == "line":
        yield _plainly("", was, now).strip() if was else "added"  # the name has the line
    else:
        yield _plainly(name.replace("_", " "), was, now)


def _plainly(name: str, was: Any, now: Any) -> str:
    if now in (None, "", []):
        return f"{name} {_short(was)} removed"
    if was in (None, "", []):
        return f"{name} {_short(now)} added"
    return f"{name} {_short(was)} → {_short(now)}"


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = " ".join(map(str, value))
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
