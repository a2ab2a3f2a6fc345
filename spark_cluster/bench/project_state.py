"""The state of the user's project folder, so that a run can be repeated from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

GIT_S = 5.0
"""Seconds that git may take."""


def commit_of(folder: Path) -> str:
    """Return the commit of a folder, with ` (changed)` when files differ; empty without git."""
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit} (changed)" if changed else commit


def _git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "--no-optional-locks", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=GIT_S)
    return done.stdout.strip()
