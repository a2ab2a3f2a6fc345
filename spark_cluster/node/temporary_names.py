"""Names of our temporary files, which tell them from all others: see `temporary`."""

from __future__ import annotations

import hashlib
import os
import re

_NAME = re.compile(r"\.(?P<stem>.+)\.spark-cluster-(?P<random>[0-9a-f]{8})(?P<check>[0-9a-f]{8})")
_STEM = 200
"""Bytes of the name that are kept: file systems allow 255 for all of it."""


def temporary_name(name: str) -> str:
    """Return a fresh name for a temporary file that will become `name`."""
    stem, random = _stem(name), os.urandom(4).hex()
    return f".{stem}.spark-cluster-{random}{_check(stem, random)}"


def is_temporary(name: str) -> bool:
    """Return whether a file of this name is one of our temporary files."""
    found = _NAME.fullmatch(name)
    return found is not None and found["check"] == _check(found["stem"], found["random"])


def becomes(name: str, temporary: str) -> bool:
    """Return whether a file is one of our temporary files that was to become `name`."""
    return temporary.startswith(f".{_stem(name)}.spark-cluster-") and is_temporary(temporary)


def _stem(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_STEM])


def _check(stem: str, random: str) -> str:
    text = b"spark-cluster temporary file\0" + os.fsencode(stem) + b"\0" + random.encode()
    return hashlib.sha256(text).hexdigest()[:8]
