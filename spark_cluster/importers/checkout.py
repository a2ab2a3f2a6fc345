"""The origin of a folder: repository and commit of the git checkout that it lies in, read as files.

No program is run: a repository of someone else's can name programs that git would run.
"""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

LARGEST = 1 << 20
"""Bytes of a file of git's that are read; packed-refs of a large repository has a tenth of it."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCP = re.compile(r"(?:[\w.-]+@)?([\w.-]+):(?!/)(.+)")


@dataclass(frozen=True)
class Checkout:
    """The origin of files; empty where nothing tells.

    Attributes:
        url: of the remote `origin`, without user and password.
        commit: that is checked out.
    """

    url: str = ""
    commit: str = ""


def checkout_of(folder: Path) -> Checkout:
    """Return the checkout that a folder lies in; an empty one where it lies in none."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_dir():
            return Checkout(_url(_text(git / "config")), _commit(git))
    return Checkout()


def plain_url(url: str) -> str:
    """Return an address without user and password, as https where it is SSH's short form.

    >>> plain_url("https://me:secret@github.com/a/b.git")
    'https://github.com/a/b'
    >>> plain_url("git@github.com:a/b.git")
    'https://github.com/a/b'
    """
    short = _SCP.fullmatch(url) if "://" not in url else None
    if short:
        return f"https://{short[1]}/{short[2]}".removesuffix(".git")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return ""  # a folder of this machine, which says nothing to others
    return f"https://{parts.hostname}{parts.path}".removesuffix(".git")


def _url(config: str) -> str:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(config)
        found = parser.get('remote "origin"', "url", fallback="") or ""
    except configparser.Error:
        return ""
    try:
        return plain_url(found)
    except ValueError:
        return ""


def _commit(git: Path) -> str:
    head = _text(git / "HEAD").strip()
    name = head.removeprefix("ref:").strip()
    if name == head:
        return head if _COMMIT.fullmatch(head) else ""
    if ".." in name.split("/") or name.startswith("/"):
        return ""
    loose = _text(git / name).strip()
    if _COMMIT.fullmatch(loose):
        return loose
    for line in _text(git / "packed-refs").splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name and _COMMIT.fullmatch(commit):
            return commit
    return ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8", errors="replace")
    except OSError:
        return ""
