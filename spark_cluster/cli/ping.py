"""`ping`: reach every node and time it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode


@dataclass(frozen=True)
class Reached:
    """A node that answers: network turn (with the agent's part), time to connect, its Python."""

    rtt_ms: float
    connect_ms: float
    python: str


@click.command()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Connect to every node, start an agent there without sudo, and measure one round trip.

    Exit status 3 when a node cannot be reached.
    """
    from spark_cluster.runner.parallel import in_parallel

    app: App = ctx.obj
    outcomes = in_parallel({node.name: partial(_reach, node) for node in app.nodes})
    if app.as_json:
        app.print_json({"nodes": [_document(name, o) for name, o in outcomes.items()]})
    else:
        _show(app, outcomes)
    errors = [o for o in outcomes.values() if isinstance(o, SparkClusterError)]
    if errors:
        ctx.exit(max(error.exit_code for error in errors))


def _reach(node: InventoryNode) -> Reached:
    from spark_cluster.runner.connections import ssh

    connection = ssh(node)
    started = time.monotonic()
    try:
        session = connection.session("ping", become=False)
        python = session.request("gather")["machine"]["python"]
        connected = time.monotonic()
        session.request("gather")
        rtt = time.monotonic() - connected
        session.close()
    finally:
        connection.close()
    return Reached(round(rtt * 1000, 2), round((connected - started) * 1000, 1), python)


def _document(name: str, outcome: Reached | SparkClusterError) -> dict[str, object]:
    if isinstance(outcome, Reached):
        return {
            "name": name,
            "reachable": True,
            "rtt_ms": outcome.rtt_ms,
            "connect_ms": outcome.connect_ms,
            "python": outcome.python,
        }
    return {
        "name": name,
        "reachable": False,
        "rtt_ms": None,
        "error": outcome.message,
        "hint": outcome.hint,
    }


def _show(app: App, outcomes: dict[str, Reached | SparkClusterError]) -> None:
    from spark_cluster.cli.console import styled

    width = max(len(name) for name in outcomes)
    for name, outcome in outcomes.items():
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
