"""Text and tables for the console: our own markup is parsed, what comes from elsewhere never is.

Light to import: rich is imported when something is made for a screen.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from spark_cluster.node.output import LINE_LIMIT

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


Verdict = TypeVar("Verdict", bound=str)

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

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 (but newline and tab), DEL, C1, overrides of the writing direction, halves of UTF-16 pairs,
which cannot be printed. See ECMA-48 section 5 and Unicode Technical Report 36 section 2.5."""

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""A complete Select Graphic Rendition."""

_LINE_END = re.compile(r"\r\n|\n|\r")


# -- text from elsewhere: shown, never obeyed ------------------------------------------------------


def visible(text: str) -> str:
    r"""The text with its control characters escaped, all but newline and tab.

    >>> visible("\x1b]0;owned\x07 done\u202e")
    '\\x1b]0;owned\\x07 done\\u202e'
    """
    if _UNSAFE.search(text) is None:
        return text
    return _UNSAFE.sub(_escaped, text.replace("\r\n", "\n"))


def coloured(line: str) -> str:
    r"""Escape as `visible` does, but complete colour sequences stay, and end with the line.

    >>> coloured("\x1b[32mINFO\x1b[2J")
    '\x1b[32mINFO\\x1b[2J\x1b[0m'
    """
    if "\x1b" not in line:
        return visible(line)
    texts, colours = _COLOUR.split(line), _COLOUR.findall(line)
    shown = visible(texts[0])
    for colour, text in zip(colours, texts[1:], strict=True):
        shown += colour + visible(text)
    return f"{shown}\x1b[0m" if colours and colours[-1] not in ("\x1b[0m", "\x1b[m") else shown


def lines_of(text: str) -> list[str]:
    """Its lines, as a terminal would begin a new one: also where a progress bar goes back."""
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LinePrinter:
    """Prints whole lines only, so that several logs do not mix; colours stay.

    Args:
        prefix: of each line.
        err: print to standard error.
    """

    def __init__(self, prefix: str = "", *, err: bool = False) -> None:
        self.prefix = prefix
        self.err = err
        self.rest = ""

    def add(self, text: str) -> None:
        """Print the lines that are whole with this text."""
        text = self.rest + text
        # A carriage return that is the last to have come may be the half of a line end.
        cut = max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1
        if len(text) - cut > LINE_LIMIT:
            cut = len(text)
        self.rest = text[cut:]
        self._print(text[:cut])

    def end(self) -> None:
        """Print the last line, which no line end followed."""
        self._print(self.rest)
        self.rest = ""

    def _print(self, text: str) -> None:
        for line in lines_of(text):
            click.echo(coloured(self.prefix + line), err=self.err)


# -- text and tables in styles of our own ----------------------------------------------------------


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


def tally(styles: Mapping[Verdict, str], count: Callable[[Verdict], int]) -> Text:
    """Return how often there is each verdict, such as `1 fail, 3 ok`; `ok` also where it is 0.

    Args:
        styles: of the verdicts, in their order.
    """
    counts = ((verdict, count(verdict)) for verdict in styles)
    return joined((painted(f"{n} {v}", styles[v]) for v, n in counts if n or v == "ok"), ", ")


def plain_table(
    *titles: str,
    right: Iterable[str] = (),
    whole: Iterable[str] = (),
    dim: Iterable[str] = (),
    header: bool = True,
    wide: bool = False,
) -> Table:
    """Return an empty table as all commands show theirs: without lines, with bold titles.

    Args:
        titles: of the columns.
        right: the columns whose values stand at the right, as numbers do.
        whole: those that are never wrapped.
        dim: those in dim style, such as labels.
        header: show the titles.
        wide: leave two blanks after each column.
    """
    from spark_cluster.cli.tables import FittedTable

    padding = (0, 2, 0, 0) if wide else (0, 1)
    found = FittedTable(
        box=None, pad_edge=False, header_style="bold", show_header=header, padding=padding
    )
    for title in titles:
        found.add_column(
            title,
            justify="right" if title in right else "left",
            no_wrap=title in whole,
            overflow="fold",
            style="dim" if title in dim else None,
        )
    return found


def labelled(rows: Iterable[tuple[str, Text | str]]) -> Table:
    """Return a table of dim labels, and of values that are folded next to them."""
    label = ("label",)
    found = plain_table("label", "value", dim=label, whole=label, header=False, wide=True)
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
