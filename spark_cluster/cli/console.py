"""Text and tables for the console: our own markup is parsed, what comes from elsewhere never is.

Light to import: rich is imported when something is made for a screen.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_cluster.cli.visible import visible

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_SLOT = "\ue000"
"""Stands for a value while a template is parsed (a private-use character)."""

_MARKS = {
    "fail": ("✘", "red"),
    "error": ("✘", "red"),
    "warn": ("!", "yellow"),
    "warning": ("!", "yellow"),
    "unknown": ("?", "magenta"),
    "info": ("i", "blue"),
    "ok": ("✔", "green"),
}


def styled(template: str, *values: object) -> Text:
    """A template of ours with `[style]...[/]`, and values that stay what they are.

    >>> styled("[bold]{}[/] says {:>4}", "a[/b]", 7).plain
    'a[/b] says    7'

    Args:
        template: a literal; it holds `{}` or `{:format}` for each value.
        values: shown as they are, control characters escaped; a Text keeps its own styles.
    """
    from rich.text import Text

    pattern, texts = "", []
    left = iter(values)
    for literal, name, spec, _ in string.Formatter().parse(template):
        pattern += literal
        if name is not None:
            pattern += _SLOT
            value = next(left)
            shown = value if isinstance(value, Text) else painted(format(value, spec or ""))
            texts.append(shown)
    return _filled(Text.from_markup(pattern, emoji=False), texts)


def painted(text: str, style: str = "") -> Text:
    """Text from elsewhere in one style, which ends with it when something is added."""
    from rich.text import Text

    found = Text(visible(text))
    if style:
        found.stylize(style)
    return found


def joined(parts: Iterable[Text | str], between: str = "\n") -> Text:
    """Parts one after another, each with its own styles."""
    from rich.text import Text

    return Text(between).join(p if isinstance(p, Text) else painted(p) for p in parts)


def mark(verdict: str) -> Text:
    """The sign of `ok`, `warning`, `error`, `unknown`, ... in its colour."""
    return painted(*_MARKS[verdict])


def plain_table(
    *titles: str,
    right: Iterable[str] = (),
    whole: Iterable[str] = (),
    fold: Iterable[str] = (),
    dim: Iterable[str] = (),
    header: bool = True,
    wide: bool = False,
) -> Table:
    """Return an empty table as all commands show theirs: without lines, with bold titles.

    Args:
        titles: of the columns.
        right: the columns whose values stand at the right, as numbers do.
        whole: those that are never wrapped.
        fold: those in which a word that is too long goes on in the next line, uncut.
        dim: those in dim style, such as labels.
        header: show the titles.
        wide: leave two blanks after each column.
    """
    from rich.table import Table

    padding = (0, 2, 0, 0) if wide else (0, 1)
    found = Table(
        box=None, pad_edge=False, header_style="bold", show_header=header, padding=padding
    )
    for title in titles:
        found.add_column(
            title,
            justify="right" if title in right else "left",
            no_wrap=title in whole,
            overflow="fold" if title in fold else "ellipsis",
            style="dim" if title in dim else None,
        )
    return found


def labelled(rows: Iterable[tuple[str, Text | str]]) -> Table:
    """Return a table of dim labels, and of values that are folded next to them."""
    label = ("label",)
    found = plain_table(
        "label", "value", dim=label, whole=label, fold=("value",), header=False, wide=True
    )
    for row in rows:
        found.add_row(*row)
    return found


def _filled(parsed: Text, values: list[Text]) -> Text:
    """The parsed template with a value at each slot, in the slot's style and its own."""
    from rich.text import Text

    at = [index for index, char in enumerate(parsed.plain) if char == _SLOT]
    found = Text()
    left = iter(values)
    for part in parsed.divide(sorted({*at, *(index + 1 for index in at)})):
        if part.plain != _SLOT:
            found.append_text(part)
            continue
        value = Text().append_text(next(left))
        for span in reversed(part.spans):  # the outer ones lie below
            value.stylize_before(span.style)
        found.append_text(value)
    return found
