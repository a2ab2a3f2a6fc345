"""`up` of several models: one run, and what is shown of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_cluster.cli.app import App
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.engine.memory_phases import MemoryOfNode
    from spark_cluster.engine.result import ServedTogether
    from spark_cluster.runner.options import Options


def serve(
    app: App,
    allow: Allowances,
    options: Options,
    *,
    force: bool,
    offline: bool,
    end_jobs: bool,
) -> None:
    """Serve the models of the inventory, and show them.

    Raises:
        SparkClusterError: as the playbook `up_models`.
    """
    found = app.cluster.up_models(
        force=force, offline=offline, end_jobs=end_jobs, allow=allow, options=options
    )
    if app.as_json:
        app.print_json(found.to_dict())
        return
    app.show_recap()
    if found.served is not None:
        _show(app, found.served, found.memory)


def _show(app: App, served: ServedTogether, memory: Iterable[MemoryOfNode]) -> None:
    """Print a verified endpoint: memory, address, each model with its answer."""
    from spark_cluster.cli.console import mark, painted, styled
    from spark_cluster.cli.vram import table

    console = app.console
    console.print()
    console.print(table(served.now, served.peak))
    for node in memory:
        if node.planned_ready is not None:
            console.print(painted(f"GPU memory of {node}", "dim"), soft_wrap=True)
    count = len(served.parts)
    console.print(styled("\n[bold]{} models[/] at [bold cyan]{}[/]", count, served.endpoint.url))
    console.print(painted(str(served.access), "dim"), soft_wrap=True)
    for part in served.parts:
        recipe = part.plan.recipe
        also = f", also as {', '.join(part.names[1:])}" if part.names[1:] else ""
        shown = (mark("ok"), part.names[0], recipe.kind, part.plan.nodes[0].name, recipe.name, also)
        line = styled("{} [bold]{}[/]  [dim]{} on {}, recipe {}{}[/]", *shown)
        console.print(line, soft_wrap=True)
        if part.answer:
            console.print(styled("  it answers: [bold]{}[/]", part.answer), soft_wrap=True)
        if part.plan.deployment.on_request:
            console.print("  it is loaded when it is asked for")
    if served.endpoint.host == "127.0.0.1" and not app.inventory.head.is_local:
        text = "it is bound to the head's loopback; from here: spark-cluster tunnel"
        console.print(painted(text, "dim"), soft_wrap=True)
