"""`ping`: reach every node and time it."""

from __future__ import annotations

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import styled
from spark_cluster.cli.options import Command
from spark_cluster.cli.results import PingResult, Reached


@click.command(cls=Command)
def command(ctx: click.Context, app: App) -> None:
    """Connect to every node, start an agent there without sudo, and measure one round trip.

    Exit status 3 when a node cannot be reached.
    """
    found = app.cluster.ping()
    app.show(found, _show)
    if not found.ok:
        ctx.exit(max(error.exit_code for error in found.errors.values()))


def _show(app: App, found: PingResult) -> None:
    width = max(len(name) for name in found.nodes)
    for name, outcome in found.nodes.items():
        whose = name.ljust(width)
        if isinstance(outcome, Reached):
            took = f"connected in {outcome.connect_ms:.0f} ms, Python {outcome.python}"
            line = styled("[bold]{}[/]  [green]reachable[/]  ", whose)
            app.console.print(line + styled("{:.1f} ms  [dim]{}[/]", outcome.rtt_ms, took))
        else:
            line = styled("[bold]{}[/]  [red]unreachable[/]  {}", whose, outcome.message)
            app.console.print(line, soft_wrap=True)
            if outcome.hint:
                hint = styled("{}  [cyan]{}[/]", " " * width, outcome.hint)
                app.console.print(hint, soft_wrap=True)
