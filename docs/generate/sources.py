"""docs/sources.md: the one place that says what a source's key stands for."""

from __future__ import annotations

import re

from docs.generate.code import CHECKOUT
from docs.generate.markdown import plain

PAGE = CHECKOUT / "docs" / "sources.md"
_HEADING = re.compile(r"^### ([a-z0-9][a-z0-9.-]*)$", re.M)
_NOTE = re.compile(r"^(\S+)(?: \((.+)\))?$")


def keys() -> set[str]:
    """Every key on the page."""
    return set(_HEADING.findall(PAGE.read_text(encoding="utf-8")))


def split(source: str) -> list[tuple[str, str]]:
    """`key; key (note)` as keys, each with its note or nothing.

    Raises:
        ValueError: a part is not of that form.
    """
    found = []
    for part in source.split("; "):
        match = _NOTE.match(part)
        if match is None:
            raise ValueError(f"{source!r}: {part!r} is no key of docs/sources.md with a (note)")
        found.append((match[1], match[2] or ""))
    return found


def links(source: str, page: str = "../sources.md") -> str:
    """A source as Markdown: each key a link to its place on `page`, the way to docs/sources.md.

    Raises:
        ValueError: it is not made of keys.
    """
    listed = [
        f"[{key}]({page}#{key.replace('.', '')})" + (f" ({plain(note)})" if note else "")
        for key, note in split(source)
    ]
    return ", ".join(listed)
