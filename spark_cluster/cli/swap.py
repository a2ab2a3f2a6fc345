"""`swap`: serve another recipe in place of the one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from spark_cluster.cli.app import App, allowing, changing
from spark_cluster.cli.console import painted
from spark_cluster.cli.override_options import overriding
from spark_cluster.cli.recipes_to_serve import recipe_to_serve, size_on
from spark_cluster.cli.run_record import keep_plot
from spark_cluster.cli.serving_options import adopting, ending_jobs, forced, sized, unloading
from spark_cluster.cli.up import show_served
from spark_cluster.config.allowances import Allowances
from spark_cluster.config.overrides import Changes, text
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine.memory_phases import MemoryPhases
from spark_cluster.engine.previous_server import PreviousServer
from spark_cluster.errors import UsageError
from spark_cluster.runner.options import Options


@click.command()
@click.argument("recipe_name", metavar="RECIPE")
@sized
@forced
@click.option(
    "--no-restore",
    is_flag=True,
    help="Do not start the old recipe again if the new one fails.",
)
@unloading
@ending_jobs
@adopting
@overriding
@allowing
@changing
@click.pass_obj
def command(
    app: App,
    recipe_name: str,
    tp: int | None,
    force: bool,
    no_restore: bool,
    unload: tuple[str, ...],
    end_jobs: bool,
    adopt: bool,
    changes: Changes,
    allow: Allowances,
    options: Options,
) -> None:
    """Serve RECIPE in place of what runs; the old one again if it fails.

    Image and model are fetched while the old server still answers. Then it is stopped, its memory
    is waited for on every node, and RECIPE is started and verified as by `up`. If that fails, the
    old recipe is started again, and the exit status is that of the failure.
    """
    options.adopt = adopt
    if options.selection.partial:
        raise UsageError(
            "swap stops one server and starts another, and takes no selection of roles",
            hint="leave out --tags, --skip-tags and --start-at",
        )
    recipe = recipe_to_serve(app.cluster, recipe_name, changes, allow)
    size = size_on(app.cluster, recipe, tp)

    def load(previous: PreviousServer) -> Recipe:
        return recipe_to_serve(app.cluster, previous.recipe, previous.changes, allow)

    title = " ".join(filter(None, [f"swap {recipe.name} --tp {size}", text(recipe.overrides)]))
    memory = MemoryPhases()
    with app.play(title, app.nodes, options) as run:
        run.bus.add(memory)
        playbook = app.project.load_playbook("swap")
        swapped = playbook.function(
            run.open(),
            recipe=recipe,
            tp=size,
            load=load,
            force=force,
            restore=not no_restore,
            unload=unload,
            end_jobs=end_jobs,
        )
        plot = keep_plot(run.id, run.bus, memory)
    if app.as_json:
        held = list(memory.nodes.values())
        app.print_json(run.document(swapped, memory=held, memory_plot=plot))
    else:
        app.show_recap()
        if swapped is not None:
            _show(app, swapped, memory, plot)


def _show(app: App, swapped: Any, memory: MemoryPhases, plot: Path | None) -> None:
    show_served(app, swapped.served, memory.nodes.values(), plot)
    if swapped.former is not None:
        text = f"in place of {swapped.former}; {swapped.down_s:.1f} s without a server"
        app.console.print(painted(text, "dim"), soft_wrap=True)
