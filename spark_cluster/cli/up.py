"""Serve a model: `up` from any state, `swap` in place of another, `supervise` it on the head."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, mark, painted, styled, visible
from spark_cluster.cli.options import (
    Adopting,
    Allowing,
    Changing,
    DeclaredCommand,
    DeclaredGroup,
    EndingJobs,
    EndpointPort,
    Forced,
    Overriding,
    Positive,
    Sized,
    Unloading,
)
from spark_cluster.cli.served import vram_table
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.engine.memory_phases import MemoryOfNode
from spark_cluster.errors import Failed, UsageError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from spark_cluster.cli.serving import UpResult
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine.launches import PreviousServer
    from spark_cluster.engine.result import Served
    from spark_cluster.engine.supervision import Supervision
    from spark_cluster.runner.events import Options

SHOWN = 10
"""Events of the supervision that are shown; --json has all of them."""


class UpOptions(TypedDict):
    """What is handed on to `Cluster.up`."""

    tp: Sized
    replicas: Annotated[Positive, {"default": 1}]
    recipe: str | None
    force: Forced
    offline: bool
    end_jobs: EndingJobs


@click.command(cls=DeclaredCommand)
def up(
    app: App,
    *,
    adopt: Adopting,
    changes: Overriding,
    port: EndpointPort,
    allow: Allowing,
    options: Changing,
    **given: Unpack[UpOptions],
) -> None:
    """Bring the nodes from any state to a verified vLLM endpoint.

    Network, Docker, image, model, Ray over the fabric, vLLM; then Ray must show every node and
    GPU, and the model must give the right answer. Running it again changes nothing.

    Several recipes of the inventory (`serve: [CHAT, EMBEDDING]`) are served next to each other:
    the endpoint sends a request to the model that it names.

    Args:
        replicas (N): Number of nodes that each serve the whole model (--tp 1), behind one
            endpoint. [default]
        recipe (NAME): Recipe to serve, instead of the inventory's.
        offline: Do not contact the hub. Serve what the nodes have; models may still be copied
            between them.
    """
    app.cluster.port = port
    options.adopt = adopt
    with app.cluster.dialer.begun(app.nodes):  # reading a recipe takes as long as a login
        found = app.cluster.up(overrides=changes, allow=allow, options=options, **given)
    app.show(found, _show)


def _show(app: App, found: UpResult) -> None:
    from spark_cluster.cli.serving import UpModelsResult

    app.show_recap()
    if found.served is not None and isinstance(found, UpModelsResult):
        _show_models(app, found.served, found.memory)
    elif found.served is not None:
        show_served(app, found.served, found.memory, found.memory_plot)


def show_served(
    app: App, served: Served, memory: Iterable[MemoryOfNode], plot: Path | None
) -> None:
    """Print a verified endpoint: memory, address, answer, versions.

    Args:
        plot: of the memory over time, where there is one.
    """

    _show_memory(app, vram_table(served.now, served.peak, under_load=served.under_load), memory)
    if plot is not None:
        app.console.print(painted(f"memory over time: {plot}", "dim"))
    endpoint = served.endpoint
    recipe = served.server.recipe
    chats = recipe.kind == "chat"
    kind = "" if chats else f"{recipe.kind}, "
    where = styled("\n[bold]{}[/] at [bold cyan]{}[/]", endpoint.model, endpoint.url)
    behind = [replica.node for replica in endpoint.replicas]
    size = f"replicas on {', '.join(behind)}" if behind else f"tp {served.server.tp}"
    if recipe.data_parallel > 1:
        size += f", {recipe.data_parallel} data-parallel ranks"
    app.console.print(where + styled("  [dim]{}{}, recipe {}[/]", kind, size, recipe.name))
    app.console.print(painted(str(served.access), "dim"))
    if served.answer:
        told = "it answers" if chats else f"{recipe.kind} verified"
        app.console.say("{} {}: [bold]{}[/]", mark("ok"), told, served.answer)
    others = [rung.replace("_", " ") for rung in recipe.readiness.rungs if rung != "answer"]
    if others and chats:
        app.console.say("{} also verified: {}", mark("ok"), ", ".join(others))
    short = {k: v[:19] if k == "image" else v for k, v in served.versions.items()}
    app.console.print(painted("  ".join(f"{k} {v}" for k, v in short.items()), "dim"))
    _show_next(app, served)


def _show_memory(app: App, readings: Table, memory: Iterable[MemoryOfNode]) -> None:
    app.console.print()
    app.console.print(readings)
    for node in memory:
        if node.planned_ready is not None or node.under_load is not None:
            app.console.print(painted(f"GPU memory of {node}", "dim"))


def _show_next(app: App, served: Served) -> None:
    """Say how the endpoint is asked from here, and which commands are about it."""
    console, head = app.console, app.inventory.head
    on_head = served.endpoint.host == LOOPBACK
    if on_head and not head.is_local:
        text = f"it is bound to the head's loopback; from here: {app.command('tunnel')}"
        console.print(painted(text, "dim"))
    elsewhere = on_head and head.is_local and not head.is_this_machine  # another loopback
    if not elsewhere and served.access.tls is None:  # `clients` saves the head's certificate
        _show_request(app, served)
    console.print()
    console.print(next_commands(app))


def next_commands(app: App) -> Text:
    """Return the commands about an endpoint that serves, a line each; none is cut."""
    found = {
        "clients": "texts for Python, Open WebUI and others",
        "tunnel": "the endpoint at a port of this machine, over SSH",
        "verify": "ask it what users and agents will ask",
        "dashboard": "the nodes live, in a browser",
    }
    if app.inventory.head.is_local:
        del found["tunnel"]
    lines = {app.command(name): what for name, what in found.items()}
    width = max(map(len, lines))
    return joined(styled("{}  [dim]{}[/]", line.ljust(width), what) for line, what in lines.items())


def _show_request(app: App, served: Served) -> None:
    """Print a request to copy: the recipe's own question, whose right answer is known."""
    from spark_cluster.engine.client_target import Current, snippet, target_of  # late, for --help

    recipe = served.server.recipe
    now = Current(served.access, served.endpoint.model, recipe.kind)
    with contextlib.suppress(Failed):  # a name that no shell should see: `clients` says it
        target = target_of(now, app.inventory.serve, app.inventory.head.name)
        if recipe.kind == "chat":
            target = replace(target, question=recipe.probe.question)
        app.console.print(painted("\nto ask it:", "dim"))
        click.echo(visible(snippet("curl", target).text), nl=False)


def _show_models(app: App, served: Served, memory: Iterable[MemoryOfNode]) -> None:
    """Print a verified endpoint: memory, address, each model with its answer."""

    _show_memory(app, vram_table(served.now, served.peak), memory)
    count = len(served.servers)
    app.console.say("\n[bold]{} models[/] at [bold cyan]{}[/]", count, served.endpoint.url)
    app.console.print(painted(str(served.access), "dim"))
    for part in served.servers:
        recipe = part.server.recipe
        name, *aliases = part.server.names
        also = f", also as {', '.join(aliases)}" if aliases else ""
        shown = (mark("ok"), name, recipe.kind, part.server.nodes[0].name, recipe.name, also)
        app.console.say("{} [bold]{}[/]  [dim]{} on {}, recipe {}{}[/]", *shown)
        if part.answer:
            app.console.say("  it answers: [bold]{}[/]", part.answer)
        if part.server.on_request:
            app.console.print("  it is loaded when it is asked for")
    _show_next(app, served)


# -- `swap`: serve another recipe in place of the one that runs ------------------------------------


@click.command(cls=DeclaredCommand)
def swap(
    app: App,
    *,
    recipe_name: Annotated[str, {"metavar": "RECIPE"}],
    tp: Sized,
    force: Forced,
    no_restore: bool,
    unload: Unloading,
    end_jobs: EndingJobs,
    adopt: Adopting,
    changes: Overriding,
    allow: Allowing,
    options: Changing,
) -> None:
    """Serve RECIPE in place of the running server; go back to the old one if it fails.

    Image and model are fetched while the old server still answers. Then it is stopped, swap waits
    until its memory is free on every node, and RECIPE is started and verified as by `up`. If that
    fails, the old recipe is started again, and the exit status is that of the failure.

    Args:
        no_restore: Do not start the old recipe again if the new one fails.
    """
    from spark_cluster.cli.run import keep_plot
    from spark_cluster.cli.serving import recipe_to_serve, size_on
    from spark_cluster.config.launch import options_text
    from spark_cluster.config.schema import as_json

    options.adopt, options.force = adopt, force
    if options.selection.partial:
        raise UsageError(
            "swap stops one server and starts another, and takes no selection of roles",
            hint="leave out --tags, --skip-tags and --start-at",
        )
    recipe = recipe_to_serve(app.cluster, recipe_name, changes, allow)
    size = size_on(app.cluster, recipe, tp)

    def load(previous: PreviousServer) -> Recipe:
        return recipe_to_serve(app.cluster, previous.recipe, previous.changes, allow)

    title = f"swap {recipe.name} --tp {size} {options_text(recipe.overrides)}".rstrip()
    with app.cluster.play(title, app.nodes, options) as run:
        playbook = app.project.load_playbook("swap")
        swapped = playbook.function(
            run.open(),
            recipe=recipe,
            tp=size,
            load=load,
            restore=not no_restore,
            unload=unload,
            end_jobs=end_jobs,
        )
        plot = keep_plot(run.id, run.bus, run.memory)
    memory = list(run.memory.nodes.values())
    told = {**as_json(swapped or {}), "memory": memory, "memory_plot": plot}
    app.show_run(run, told, swapped, partial(_show_swapped, memory=memory, plot=plot))


def _show_swapped(app: App, swapped: Any, memory: list[MemoryOfNode], plot: Path | None) -> None:
    show_served(app, swapped.served, memory, plot)
    if swapped.former is not None:
        text = f"in place of {swapped.former}; {swapped.down_s:.1f} s without a server"
        app.console.print(painted(text, "dim"))
        back = app.command(swapped.former.command.removeprefix("spark-cluster "))
        app.console.print(painted(f"to go back: {back}", "dim"))


# -- `supervise`: a unit on the head that restarts a dead engine -----------------------------------


@click.group(cls=DeclaredGroup)
def supervise() -> None:
    """Restart a dead engine from the head itself, without the laptop: install, remove, status."""


@supervise.command()
def install(app: App, *, at_boot: bool, options: Changing) -> None:
    """Install the supervision on the head, as a systemd unit, and start it.

    It asks the server for a real completion, stops a server that gives none, waits until its
    memory is back, and starts it again: after pauses that grow, and five times an hour at most.

    Args:
        at_boot: Start the supervision at boot, too.
    """
    _apply(app, "install", options, state="present", at_boot=at_boot)


@supervise.command()
def remove(app: App, *, options: Changing) -> None:
    """Remove the supervision; what serves stays as it is."""
    _apply(app, "remove", options, state="absent", at_boot=False)


@supervise.command("status")
def supervision_status(app: App) -> None:
    """Show what the supervision knows of the server, and what it did last."""
    app.import_meanwhile("spark_cluster.engine.supervision")
    head = app.inventory.head
    with app.cluster.dialer.session(head, "supervise") as session:
        from spark_cluster.engine.supervision import report

        found = report(session)
    app.show(found, _show_supervision)


def _apply(app: App, name: str, options: Options, **wanted: Any) -> None:
    head = app.inventory.head
    with app.cluster.play(f"supervise {name}", [head], options, gather_facts=False) as run:
        playbook = app.project.load_playbook("supervise")
        found = playbook.function(run.open(), **wanted)
    told = None if found is None else {"supervision": found}
    app.show_run(run, told, found, _show_supervision)


def _show_supervision(app: App, found: Supervision) -> None:
    if not found.installed:
        install = app.command("supervise install")
        app.console.print(f"not installed: `{install}` installs it on the head")
        return
    boot = "started at boot" if found.at_boot else "not started at boot (install --at-boot)"
    app.console.say("supervision: [bold]{}[/], {}", found.active, boot)
    why = f": {found.state.reason}" if found.state.reason else ""
    phase = found.state.phase if found.state.boot else "not looked at yet"
    app.console.say("server: [bold]{}[/]{}", phase, why)
    for problem in found.problems:
        app.console.say("[yellow]![/] {}", problem)
    for event in found.events[-SHOWN:]:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
        app.console.print(painted(f"{moment}  {event.text}", "dim"))
