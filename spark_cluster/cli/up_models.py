"""`up` of several models: one run, and what is shown of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_cluster.cli.app import App
    from spark_cluster.cli.run import Run
    from spark_cluster.runner.options import Options
    from spark_cluster.serving.memory_phases import MemoryPhases
    from spark_cluster.serving.models import ServedModel
    from spark_cluster.serving.result import ServedTogether


def serve(
    app: App, models: Sequence[ServedModel], options: Options, *, force: bool, offline: bool
) -> Run:
    """Serve the models and show them; returns the run.

    Raises:
        SparkClusterError: as the playbook `up_models`.
    """
    from spark_cluster.serving.memory_phases import MemoryPhases

    port = "" if app.port is None else f" --port {app.port}"
    title = f"up {', '.join(model.recipe.name for model in models)}{port}"
    memory = MemoryPhases()
    with app.play(title, app.nodes, options) as run:
        run.bus.add(memory)
        playbook = app.project.load_playbook("up_models")
        served = playbook.function(run.open(), models=models, force=force, offline=offline)
        run.finish()
        if app.as_json:
            found = served.to_dict() if served is not None else {}
            app.print_json(run.to_dict(**found, memory=memory.to_dict()))
        else:
            run.show_recap()
            if served is not None:
                _show(app, served, memory)
    return run


def _show(app: App, served: ServedTogether, memory: MemoryPhases) -> None:
    """Print a verified endpoint: memory, address, each model with its answer."""
    from spark_cluster.cli.console import mark, painted, styled
    from spark_cluster.cli.vram import table

    console = app.console
    console.print()
    console.print(table(served.now, served.peak))
    for node in memory.nodes.values():
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
    if served.endpoint.host == "127.0.0.1":
        text = "it is bound to the head's loopback; from here: spark-cluster tunnel"
        console.print(painted(text, "dim"), soft_wrap=True)
