"""`up`: from any state to a verified vLLM endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli import up_models
from spark_cluster.cli.app import App, allowing, changing, leave_with
from spark_cluster.cli.override_options import Changes, overriding, with_port
from spark_cluster.cli.served_models import (
    OVERRIDE,
    models_to_serve,
    must_be_for_all,
    serves_several,
)
from spark_cluster.cli.serving_options import forced, recipe_to_serve, size_on, sized
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.runner.options import Options
    from spark_cluster.serving.memory_phases import MemoryPhases
    from spark_cluster.serving.result import Served


@click.command()
@sized
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of nodes that each serve the whole model (--tp 1), behind one endpoint.",
)
@click.option(
    "--recipe", "recipe_name", metavar="NAME", help="Recipe to serve, instead of the inventory's."
)
@forced
@click.option(
    "--offline",
    is_flag=True,
    help="Ask no hub: serve from what the nodes have; copies between them are made.",
)
@overriding
@with_port
@allowing
@changing
@click.pass_obj
def command(
    app: App,
    tp: int | None,
    replicas: int,
    recipe_name: str | None,
    force: bool,
    offline: bool,
    changes: Changes,
    allow: Allowances,
    exit_code: bool,
    options: Options,
) -> None:
    """Bring the nodes from any state to a verified vLLM endpoint.

    Network, Docker, image, model, Ray over the fabric, vLLM; then Ray must show every node and
    GPU, and the model must give the right answer. Running it again changes nothing.

    Several recipes of the inventory (`serve: [CHAT, EMBEDDING]`) are served next to each other:
    the endpoint sends a request to the model that it names.
    """
    app.connect_early()
    from spark_cluster.config.overrides import text
    from spark_cluster.serving.memory_phases import MemoryPhases
    from spark_cluster.serving.nodes import groups

    if recipe_name is None and serves_several(app):
        given = {"--tp": tp not in (None, 1), "--replicas": replicas > 1, OVERRIDE: changes}
        must_be_for_all(given)
        models = models_to_serve(app, allow)
        run = up_models.serve(app, models, options, force=force, offline=offline)
        leave_with(run, exit_code=exit_code)
        return
    name = recipe_name or app.inventory.serve.recipe
    if name is None:
        raise UsageError(
            "no recipe is given",
            hint="give --recipe NAME, or `serve: {recipe: NAME}` in the inventory",
        )
    recipe = recipe_to_serve(app, name, changes, allow)
    size = size_on(app, recipe, _size(tp, replicas))
    if replicas > 1:
        groups([node.name for node in app.nodes], 1, replicas)
    port = "" if app.port is None else f"--port {app.port}"
    how = f"--tp {size}" if replicas == 1 else f"--replicas {replicas}"
    title = " ".join(filter(None, ["up", how, text(recipe.overrides), port]))
    memory = MemoryPhases()
    with app.play(title, app.nodes, options) as run:
        run.bus.add(memory)
        playbook = app.project.load_playbook("up")
        play = run.open()
        several = {"count": replicas} if replicas > 1 else {}
        served = playbook.function(
            play, recipe=recipe, tp=size, force=force, offline=offline, **several
        )
        run.finish()
        if app.as_json:
            found = served.to_dict() if served is not None else {}
            app.print_json(run.to_dict(**found, memory=memory.to_dict()))
        else:
            run.show_recap()
            if served is not None:
                show_served(app, served, memory)
    leave_with(run, exit_code=exit_code)


def _size(tp: int | None, replicas: int) -> int | None:
    """Return the tensor-parallel size that is asked for; None for the recipe's.

    Raises:
        UsageError: replicas of several nodes each.
    """
    if replicas == 1:
        return tp
    if tp not in (None, 1):
        raise UsageError(
            f"--replicas {replicas} with --tp {tp}: each replica is on one node",
            hint="leave --tp out; `spark-cluster plan RECIPE --for throughput` compares the two",
        )
    return 1


def show_served(app: App, served: Served, memory: MemoryPhases) -> None:
    """Print a verified endpoint: memory, address, answer, versions."""
    from spark_cluster.cli.console import mark, painted, styled
    from spark_cluster.cli.vram import table

    console = app.console
    console.print()
    console.print(table(served.now, served.peak))
    for node in memory.nodes.values():
        if node.planned_ready is not None:
            console.print(painted(f"GPU memory of {node}", "dim"), soft_wrap=True)
    endpoint = served.plan.endpoint
    recipe = served.plan.recipe
    kind = "" if recipe.kind == "chat" else f"{recipe.kind}, "
    where = styled("\n[bold]{}[/] at [bold cyan]{}[/]", endpoint.model, endpoint.url)
    behind = [replica.node for replica in endpoint.replicas]
    size = f"replicas on {', '.join(behind)}" if behind else f"tp {served.plan.tp}"
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
    if endpoint.host == "127.0.0.1":
        text = "it is bound to the head's loopback; from here: spark-cluster tunnel"
        console.print(painted(text, "dim"), soft_wrap=True)


def _versions(found: dict[str, Any]) -> str:
    short = {name: value[:19] if name == "image" else value for name, value in found.items()}
    return "  ".join(f"{name} {value}" for name, value in short.items())
