"""The help of a group of commands."""

from __future__ import annotations

import click

LONGEST = 400
"""Characters of a command's first sentence; it is wrapped, and click would cut it."""


class Group(click.Group):
    """A group whose help shows the first sentence of each command whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, one.get_short_help_str(LONGEST)) for name, one in found if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
