"""`status`: what serves, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, plain_table, styled
from spark_cluster.cli.options import Command

if TYPE_CHECKING:
    from spark_cluster.cli.terminal import Console
    from spark_cluster.engine.status import Status

STYLES = {
    "serving": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "failed": "red",
    "stopped": "dim",
}


@click.command(cls=Command)
def command(ctx: click.Context, app: App) -> None:
    """Show what serves and what is wrong: containers, Ray, health, and a real completion.

    Exit status 5 when the state is failed or degraded, 3 when no node can be reached.
    """
    found = app.cluster.status()
    app.show(found, _show)
    if found.state in ("failed", "degraded"):
        ctx.exit(5)


def _show(app: App, found: Status) -> None:
    console = app.console
    verdict = painted(found.state, f"bold {STYLES[found.state]}")
    if found.model:
        kind = f"{found.kind}, " if found.kind not in (None, "chat") else ""
        number = len(found.replicas)
        ranks = f", {found.data_parallel} data-parallel ranks" if found.data_parallel > 1 else ""
        size = f"{number} replicas" if number else f"tp {found.tp}{ranks}"
        shown = (found.model, found.endpoint, kind, size)
        verdict += styled("  {} at {}  [dim]{}{}[/]", *shown)
        if found.overrides:
            verdict += styled("  [dim]{}[/]", found.overrides)
    if found.models:
        verdict += styled("  {} models at {}", len(found.models), found.endpoint)
    console.print(verdict, soft_wrap=True)
    if found.access is not None:
        console.print(painted(str(found.access), "dim"), soft_wrap=True)
    table = plain_table("node", "container", "state", "restarts")
    for node in found.nodes:
        if not node.reachable:
            table.add_row(node.name, "", painted("unreachable", "red"), "")
        for name, container in node.containers.items():
            if container.status != "absent":
                table.add_row(node.name, name, container.status, str(container.restarts))
    if table.row_count:
        console.print(table)
    _show_behind(console, found)
    if found.ray:
        gpus = sum(node.gpus for node in found.ray)
        console.print(styled("[dim]Ray: {} nodes, {:g} GPUs[/]", len(found.ray), gpus))
    _show_rest(console, found)


def _show_behind(console: Console, found: Status) -> None:
    """Show what is behind the endpoint where it is not one server."""

    for model in found.models:
        names = ", ".join((model.model, *model.aliases))
        shown = (names, model.kind, model.node, model.state)
        console.print(styled("[bold]{}[/]  [dim]{} on {}, {}[/]", *shown), soft_wrap=True)
    if found.replicas:
        states = ", ".join(f"{one.node} {one.state}" for one in found.replicas)
        console.print(styled("[dim]replicas: {}[/]", states))


def _show_rest(console: Console, found: Status) -> None:

    if found.tuned:
        text = f"started with tuned kernels: {', '.join(found.tuned)}"
        console.print(painted(text, "dim"), soft_wrap=True)
    if found.caches is not None:
        console.print(painted(str(found.caches), "dim"), soft_wrap=True)
    for problem in found.problems:
        console.print(styled("{} {}", mark("fail"), problem), soft_wrap=True)
    if found.problems:
        console.print(painted(_advice(found), "cyan"))


def _advice(found: Status) -> str:
    if found.state == "starting":
        return (
            "it is loading: spark-cluster up waits for it, spark-cluster logs shows how far it is"
        )
    if not all(node.reachable for node in found.nodes):
        return "every node must be reachable first: spark-cluster ping shows more"
    if any("is the cable in?" in problem for problem in found.problems):
        return (
            "plug the QSFP cable in, then run it again; spark-cluster doctor --only link shows more"
        )
    if found.replicas:
        count = len(found.replicas)
        return f"spark-cluster up --replicas {count} repairs it; spark-cluster logs shows more"
    command = f"spark-cluster up {found.overrides}".rstrip()
    return f"{command} repairs it; spark-cluster logs shows more"
