"""Lines of a log that comes in parts, printed whole."""

from __future__ import annotations

import click

from spark_cluster.cli.visible import coloured, lines_of
from spark_cluster.node.output import LINE_LIMIT


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
