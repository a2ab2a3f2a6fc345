"""The little Markdown that generated pages need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`+[^`]*`+)")
_SPECIAL = re.compile(r"([\\*_<\[\]#])")

NOTICE = "<!-- Generated from the code by docs/generate; do not edit. -->"


def page(title: str, introduction: str, *sections: str) -> str:
    """A whole page."""
    return "\n\n".join([NOTICE, f"# {title}", introduction, *sections]) + "\n"


def plain(text: str) -> str:
    """Text of the code as Markdown: code between backticks stays, all else is literal."""
    parts = _CODE.split(text)
    return "".join(p if p.startswith("`") else _SPECIAL.sub(r"\\\1", p) for p in parts)


def cell(text: str) -> str:
    """Markdown in a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing when it has no rows."""
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    if not lines:
        return ""
    rule = "|" + "---|" * len(header)
    return "\n".join(["| " + " | ".join(header) + " |", rule, *lines])


def code(text: str) -> str:
    """Text in a line as code, whatever is in it."""
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(text: str, language: str = "") -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def paragraphs(*texts: str) -> str:
    """Blocks of Markdown below each other, without the empty ones."""
    return "\n\n".join(text for text in texts if text)
