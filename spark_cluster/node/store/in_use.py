"""Models that processes of this machine were started with: an engine, ours or another's."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

_SEPARATORS = re.compile(rb"[\0\s='\"]+")
_FOLDER = re.compile(r"models--([\w.-]+)(?:/snapshots/([0-9a-f]{40}))?", re.ASCII)

LONGEST = 256 * 1024
"""Bytes of a command line that are read."""


def in_use(proc: Path, repositories: Collection[str]) -> dict[str, str]:
    """Return which revisions (or, where a process names none, repositories) are in use, and by
    which process.

    Args:
        proc: `/proc`.
        repositories: the ones that are looked for.

    Returns:
        ORG/NAME@COMMIT or ORG/NAME to the process's number and name.
    """
    folders = {name.replace("/", "--"): name for name in repositories}
    found: dict[str, str] = {}
    for line in sorted(proc.glob("[0-9]*/cmdline")):
        try:
            with line.open("rb") as opened:
                words = _SEPARATORS.split(opened.read(LONGEST))
        except OSError:  # it has ended
            continue
        for name in _named(words, repositories, folders):
            program = words[0].rpartition(b"/")[2].decode("utf-8", "replace")[:40]
            found.setdefault(name, f"process {line.parent.name} ({program})")
    return found


def _named(
    words: Collection[bytes], repositories: Collection[str], folders: dict[str, str]
) -> set[str]:
    names = set()
    for word in words:
        text = word.decode("utf-8", "replace")
        if text in repositories:
            names.add(text)
        for folder, commit in _FOLDER.findall(text):
            if folder in folders:
                names.add(folders[folder] + (f"@{commit}" if commit else ""))
    return names
