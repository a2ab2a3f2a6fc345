"""Groups of commands: their help, and commands that are imported when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

LONGEST = 400
"""Characters of a command's first sentence; it is wrapped, and click would cut it."""


class Group(click.Group):
    """A group whose help shows the first sentence of each command whole.

    Args:
        later: commands that are imported when they are called, in the order of --help: name to
            `MODULE:FUNCTION` of this package, or a module whose function is `command`.
    """

    def __init__(self, *args: Any, later: Mapping[str, str] | None = None, **given: Any) -> None:
        super().__init__(*args, **given)
        self.later = later or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = [name for name in super().list_commands(ctx) if name not in self.later]
        return [*own, *self.later]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.later and cmd_name not in self.commands:
            from spark_cluster.cli import take_globals

            module, _, function = self.later[cmd_name].partition(":")
            found = getattr(import_module(f"spark_cluster.cli.{module}"), function or "command")
            take_globals(found)
            self.add_command(found, cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, one.get_short_help_str(LONGEST)) for name, one in found if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
