"""`status`: what serves, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.cli.console import Console
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import Probe
    from spark_cluster.serving.launches import Upcoming
    from spark_cluster.serving.state import Status

STYLES = {
    "serving": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "failed": "red",
    "stopped": "dim",
}


@click.command()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show what serves and what is wrong: containers, Ray, health, and a real completion.

    Exit status 5 when the state is failed or degraded, 3 when no node can be reached.
    """
    app: App = ctx.obj
    app.connect_early()
    from spark_cluster.runner.connections import ask_secret
    from spark_cluster.runner.options import Options
    from spark_cluster.serving import state

    serve = app.inventory.serve
    key = serve.api_key.read("the API key", ask_secret()) if serve.api_key else None
    if not any(node.is_head for node in app.nodes):
        raise UsageError(
            f"--limit {app.limit} leaves out the head, which serves",
            hint=f"the head is {app.inventory.head.name}; spark-cluster ping reaches single nodes",
        )
    with app.play("status", app.nodes, Options(), change=False) as run:
        app.import_meanwhile()
        recipe = _recipe(app)
        found = state.status(run.open(fail_fast=False), key, _probe(recipe), _upcoming(app, recipe))
        run.finish()
    if app.as_json:
        app.print_json(found.to_dict())
    else:
        _show(app, found)
    if found.state in ("failed", "degraded"):
        ctx.exit(5)


def _recipe(app: App) -> Recipe | None:
    """The inventory's recipe; None when it names none."""
    from spark_cluster.loader.recipes import load_recipe

    name = app.inventory.serve.recipe
    return None if name is None else load_recipe(name, app.project)


def _probe(recipe: Recipe | None) -> Probe:
    if recipe is not None:
        return recipe.probe
    from spark_cluster.config.recipe import Recipe

    usual: Probe = Recipe.model_fields["probe"].default
    return usual


def _upcoming(app: App, recipe: Recipe | None) -> Upcoming | None:
    if recipe is None:
        return None
    from spark_cluster.serving.caches import root_on
    from spark_cluster.serving.launches import Upcoming

    return Upcoming(recipe, {node.name: root_on(node) for node in app.nodes})


def _show(app: App, found: Status) -> None:
    from rich.table import Table

    from spark_cluster.cli.console import painted, styled

    console = app.console
    verdict = painted(found.state, f"bold {STYLES[found.state]}")
    if found.model:
        kind = f"{found.kind}, " if found.kind not in (None, "chat") else ""
        number = len(found.replicas)
        size = f"{number} replicas" if number else f"tp {found.tp}"
        shown = (found.model, found.endpoint, kind, size)
        verdict += styled("  {} at {}  [dim]{}{}[/]", *shown)
        if found.overrides:
            verdict += styled("  [dim]{}[/]", found.overrides)
    if found.models:
        verdict += styled("  {} models at {}", len(found.models), found.endpoint)
    console.print(verdict, soft_wrap=True)
    if found.access is not None:
        console.print(painted(str(found.access), "dim"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "container", "state", "restarts"):
        table.add_column(title)
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
    from spark_cluster.cli.console import styled

    for model in found.models:
        names = ", ".join((model.model, *model.aliases))
        shown = (names, model.kind, model.node, model.state)
        console.print(styled("[bold]{}[/]  [dim]{} on {}, {}[/]", *shown), soft_wrap=True)
    if found.replicas:
        states = ", ".join(f"{one.node} {one.state}" for one in found.replicas)
        console.print(styled("[dim]replicas: {}[/]", states))


def _show_rest(console: Console, found: Status) -> None:
    from spark_cluster.cli.console import mark, painted, styled

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
    return "spark-cluster up repairs it; spark-cluster logs shows more"
