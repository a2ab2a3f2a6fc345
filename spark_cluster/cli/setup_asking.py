"""The questions of `setup`: asked on the terminal, or answered by its options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import click

from spark_cluster.cli.visible import visible
from spark_cluster.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Asker:
    """Asks; with --yes every consent is given, and every choice the first one.

    Args:
        yes: ask nothing.
        check: ask nothing either: nothing is done.
    """

    yes: bool
    check: bool = False

    @property
    def silent(self) -> bool:
        """True when nothing is asked."""
        return self.yes or self.check

    def must_be_able(self, would_ask: Sequence[str]) -> None:
        """Refuse to begin where questions would come that no one can answer.

        Raises:
            UsageError: there is no terminal, and no --yes; with what would be asked.
        """
        if self.silent or (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        raise UsageError(
            "setup asks questions, and there is no terminal to ask on:\n  "
            + "\n  ".join(would_ask),
            hint="give the answers as options, and --yes for the consent to every step",
        )

    def consent(self, question: str, *, default: bool = True) -> bool:
        """Ask for a yes or no."""
        return self.silent or click.confirm(visible(question), default=default, err=True)

    def offer(self, question: str) -> bool:
        """Ask whether to do what only a person may decide: no unless someone says yes."""
        return not self.silent and click.confirm(visible(question), default=True, err=True)

    def text(self, question: str, default: str | None = None) -> str:
        """Ask for a word."""
        found: str = click.prompt(visible(question), default=default, err=True)
        return found.strip()

    def until_valid(self, question: str, default: str | None, read: Callable[[str], T]) -> T:
        """Ask until the answer can be used; `read` raises UsageError with what was expected."""
        while True:
            try:
                return read(self.text(question, default))
            except UsageError as error:
                click.echo(visible(f"  {error.message}"), err=True)

    def choice(self, question: str, count: int, default: int = 1) -> int:
        """Ask for one of a numbered list; 0 is the first."""
        if self.silent:
            return default - 1
        found: int = click.prompt(
            visible(question), default=default, type=click.IntRange(1, count), err=True
        )
        return found - 1
