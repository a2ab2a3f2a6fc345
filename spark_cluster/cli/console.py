"""The one console of all commands: our own markup is parsed, what comes from elsewhere never is."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

from spark_cluster.cli.visible import visible

__all__ = ["Console", "Group", "RenderableType", "joined", "mark", "painted", "styled"]

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


class Console(rich.console.Console):
    """Prints strings as they are: no markup, no emoji codes, control characters escaped.

    Args:
        stderr: standard error, instead of standard output.
        file: somewhere else, for tests.
        width: columns; by default the terminal's.
    """

    def __init__(
        self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None
    ) -> None:
        super().__init__(
            stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False
        )

    def on_broken_pipe(self) -> None:
        """Leave it to the program's own end, as for everything else that is printed."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # of rich itself: moves the cursor of a live display
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def styled(template: str, *values: object) -> Text:
    """A template of ours with `[style]...[/]`, and values that stay what they are.

    >>> styled("[bold]{}[/] says {:>4}", "a[/b]", 7).plain
    'a[/b] says    7'

    Args:
        template: a literal; it holds `{}` or `{:format}` for each value.
        values: shown as they are, control characters escaped; a Text keeps its own styles.
    """
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
    found = Text(visible(text))
    if style:
        found.stylize(style)
    return found


def joined(parts: Iterable[Text | str], between: str = "\n") -> Text:
    """Parts one after another, each with its own styles."""
    return Text(between).join(p if isinstance(p, Text) else painted(p) for p in parts)


def mark(verdict: str) -> Text:
    """The sign of `ok`, `warning`, `error`, `unknown`, ... in its colour."""
    return painted(*_MARKS[verdict])


def _filled(parsed: Text, values: list[Text]) -> Text:
    """The parsed template with a value at each slot, in the slot's style and its own."""
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
