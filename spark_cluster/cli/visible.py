"""Text of models, nodes, logs and files on a terminal: shown, never obeyed."""

from __future__ import annotations

import re

import click

from spark_cluster.errors import SparkClusterError
from spark_cluster.node.output import LINE_LIMIT

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 (but newline and tab), DEL, C1, overrides of the writing direction, halves of UTF-16 pairs,
which cannot be printed. See ECMA-48 section 5 and Unicode Technical Report 36 section 2.5."""

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""A complete Select Graphic Rendition."""

_LINE_END = re.compile(r"\r\n|\n|\r")


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


def show_error(message: str, hint: str = "", *, node: str = "") -> None:
    """An error and its hint on standard error.

    Args:
        node: whose it is; stands before both.
    """
    before = f"{visible(node)}: " if node else ""
    title = click.style("error: ", fg="red", bold=True)
    click.echo(before + title + visible(message), err=True)
    if hint:
        click.echo(before + click.style(f"  {visible(hint)}", fg="cyan"), err=True)


def show_failure(error: SparkClusterError) -> None:
    """Print an error with its place and hint on standard error."""
    show_error(f"{error.where}: {error.message}" if error.where else error.message, error.hint)


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
