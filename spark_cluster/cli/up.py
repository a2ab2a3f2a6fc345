"""`up`: from any state to a verified vLLM endpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, styled
from spark_cluster.cli.options import (
    Adopting,
    Allowing,
    Changing,
    Command,
    EndingJobs,
    EndpointPort,
    Forced,
    Overriding,
    Positive,
    Sized,
)
from spark_cluster.cli.vram import table
from spark_cluster.engine.memory_phases import MemoryOfNode

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.cli.serving_results import UpResult
    from spark_cluster.engine.deployment import Endpoint
    from spark_cluster.engine.result import Served


class Given(TypedDict):
    """What is handed on to `Cluster.up`."""

    tp: Sized
    replicas: Annotated[Positive, {"default": 1}]
    recipe: str | None
    force: Forced
    offline: bool
    end_jobs: EndingJobs


@click.command(cls=Command)
def command(
    app: App,
    *,
    adopt: Adopting,
    changes: Overriding,
    port: EndpointPort,
    allow: Allowing,
    options: Changing,
    **given: Unpack[Given],
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
        offline: Ask no hub: serve from what the nodes have; copies between them are made.
    """
    app.cluster.port = port
    options.adopt = adopt
    with app.cluster.dialer.begun(app.nodes):  # reading a recipe takes as long as a login
        found = app.cluster.up(overrides=changes, allow=allow, options=options, **given)
    app.show(found, _show)


def _show(app: App, found: UpResult) -> None:
    from spark_cluster.cli.serving_results import UpModelsResult

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

    console = app.console
    _show_memory(app, table(served.now, served.peak, under_load=served.under_load), memory)
    if plot is not None:
        console.print(painted(f"memory over time: {plot}", "dim"), soft_wrap=True)
    endpoint = served.endpoint
    recipe = served.server.recipe
    kind = "" if recipe.kind == "chat" else f"{recipe.kind}, "
    where = styled("\n[bold]{}[/] at [bold cyan]{}[/]", endpoint.model, endpoint.url)
    behind = [replica.node for replica in endpoint.replicas]
    size = f"replicas on {', '.join(behind)}" if behind else f"tp {served.server.tp}"
    if recipe.data_parallel > 1:
        size += f", {recipe.data_parallel} data-parallel ranks"
    console.print(where + styled("  [dim]{}{}, recipe {}[/]", kind, size, recipe.name))
    console.print(painted(str(served.access), "dim"), soft_wrap=True)
    if served.answer and recipe.kind != "chat":
        found = styled("{} {} verified: [bold]{}[/]", mark("ok"), recipe.kind, served.answer)
        console.print(found, soft_wrap=True)
    elif served.answer:
        answer = styled("{} it answers: [bold]{}[/]", mark("ok"), served.answer)
        console.print(answer, soft_wrap=True)
    others = [
        rung.replace("_", " ")
        for rung in recipe.readiness.rungs
        if rung != "answer" and recipe.kind == "chat"
    ]
    if others:
        console.print(styled("{} also verified: {}", mark("ok"), ", ".join(others)))
    console.print(painted(_versions(served.versions), "dim"), soft_wrap=True)
    _show_way(app, endpoint)


def _show_memory(app: App, readings: Table, memory: Iterable[MemoryOfNode]) -> None:
    app.console.print()
    app.console.print(readings)
    for node in memory:
        if node.planned_ready is not None:
            app.console.print(painted(f"GPU memory of {node}", "dim"), soft_wrap=True)


def _show_way(app: App, endpoint: Endpoint) -> None:
    """Say how an endpoint is reached that only the head itself reaches."""
    if endpoint.host == "127.0.0.1" and not app.inventory.head.is_local:
        text = "it is bound to the head's loopback; from here: spark-cluster tunnel"
        app.console.print(painted(text, "dim"), soft_wrap=True)


def _show_models(app: App, served: Served, memory: Iterable[MemoryOfNode]) -> None:
    """Print a verified endpoint: memory, address, each model with its answer."""

    console = app.console
    _show_memory(app, table(served.now, served.peak), memory)
    count = len(served.servers)
    console.print(styled("\n[bold]{} models[/] at [bold cyan]{}[/]", count, served.endpoint.url))
    console.print(painted(str(served.access), "dim"), soft_wrap=True)
    for part in served.servers:
        recipe = part.server.recipe
        also = f", also as {', '.join(part.server.names[1:])}" if part.server.names[1:] else ""
        shown = (
            mark("ok"),
            part.server.names[0],
            recipe.kind,
            part.server.nodes[0].name,
            recipe.name,
            also,
        )
        line = styled("{} [bold]{}[/]  [dim]{} on {}, recipe {}{}[/]", *shown)
        console.print(line, soft_wrap=True)
        if part.answer:
            console.print(styled("  it answers: [bold]{}[/]", part.answer), soft_wrap=True)
        if part.server.on_request:
            console.print("  it is loaded when it is asked for")
    _show_way(app, served.endpoint)


def _versions(found: dict[str, Any]) -> str:
    short = {name: value[:19] if name == "image" else value for name, value in found.items()}
    return "  ".join(f"{name} {value}" for name, value in short.items())
