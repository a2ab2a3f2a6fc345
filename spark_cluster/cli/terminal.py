"""The one console of all commands: what comes from elsewhere is shown, never parsed or obeyed.

Lines are wrapped here, and nowhere else: on a terminal at words, with a hanging indent; in a pipe
or a file a line stays one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

import rich.console
from rich.cells import cell_len
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from spark_cluster.cli.console import styled, visible

__all__ = ["Console", "Group", "LiveLine", "RenderableType"]

_UNBROKEN = re.compile(
    r"(?:`[^`]+`|\bspark-cluster(?: (?:-i|-l|--project) \S+)* [a-z]+"
    r"(?: --[a-z][a-z-]*(?: [^\s-]\S*)?)*|\S)+"
)
"""A word; or what is copied: a text in backticks, a command of ours with its options."""

_LABEL = re.compile(r"\s*(?:[✔✘!?i▸*-] (?=\S)|\S.{0,21}?  +(?=\S))")
"""What stands before a line's text: its mark, or a label that two blanks end."""


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

    def print(self, *objects: Any, sep: str = " ", **options: Any) -> None:
        """Print as rich does; but text is wrapped as `wrapped` has it.

        Args:
            options: of rich. With `soft_wrap=True` a line stays whole, as a program's text must.
        """
        if objects and all(isinstance(one, (str, Text)) for one in objects):
            parts = [one if isinstance(one, Text) else self.render_str(one) for one in objects]
            text = Text(sep).join(parts)
            if self.is_terminal and not options.get("soft_wrap") and options.get("end") != "":
                text = wrapped(text, self.width)
            objects, options["soft_wrap"] = (text,), True
        else:
            objects = tuple(_Trimmed(one) for one in objects)
        super().print(*objects, sep=sep, **options)

    def say(self, template: str, *values: object) -> None:
        """Print a template of ours with its values, as `styled` has them."""
        self.print(styled(template, *values))

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


class LiveLine:
    """A text in a live picture, wrapped as `Console.print` has it."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_console__(
        self, _console: rich.console.Console, options: ConsoleOptions
    ) -> RenderResult:
        yield wrapped(self.text, options.max_width)


class _Trimmed:
    """What it holds, without the blanks that fill lines up to the edge."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(
        self, console: rich.console.Console, options: ConsoleOptions
    ) -> RenderResult:
        for line in console.render_lines(self.inner, options, pad=False):
            while line and not line[-1].control and not line[-1].text.rstrip(" "):
                line.pop()
            if line:
                last = line.pop()
                line.append(Segment(last.text.rstrip(" "), last.style, last.control))
            yield from line
            yield Segment.line()


def wrapped(text: Text, width: int) -> Text:
    """Break lines that are too long between words, and indent what follows below the line's text.

    A word or a command that is longer than the line stays whole.

    >>> print(wrapped(Text("  spark1  changed File:/etc/hosts  new"), 20).plain)
      spark1  changed
              File:/etc/hosts
              new
    """
    lines = text.split("\n", allow_blank=True)
    return Text("\n").join(piece for line in lines for piece in _pieces(line, width))


def _pieces(line: Text, width: int) -> Iterator[Text]:
    line.expand_tabs(8)
    if line.cell_len <= width:
        line.rstrip()
        yield line
        return
    plain = line.plain
    label = _LABEL.match(plain)
    named = label.end() if label else 0  # nothing is broken right after it
    indent = named or len(plain) - len(plain.lstrip()) + 2
    begin, end = 0, 0
    for word in _UNBROKEN.finditer(plain):
        used = cell_len(plain[begin : word.end()]) + (indent if begin else 0)
        if used > width and end > max(begin, named):
            yield Text(" " * (indent if begin else 0)) + line[begin:end]
            begin = word.start()
        end = word.end()
    yield Text(" " * (indent if begin else 0)) + line[begin:end]
