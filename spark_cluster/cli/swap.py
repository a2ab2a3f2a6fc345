"""`swap`: serve another recipe in place of the one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted
from spark_cluster.cli.options import (
    Adopting,
    Allowing,
    Changing,
    Command,
    EndingJobs,
    Forced,
    Overriding,
    Sized,
    Unloading,
)
from spark_cluster.cli.recipes_to_serve import recipe_to_serve, size_on
from spark_cluster.cli.run import keep_plot
from spark_cluster.cli.up import show_served
from spark_cluster.config.launch import options_text
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine.launches import PreviousServer
from spark_cluster.engine.memory_phases import MemoryPhases
from spark_cluster.errors import UsageError


@click.command(cls=Command)
def command(
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
    """Serve RECIPE in place of what runs; the old one again if it fails.

    Image and model are fetched while the old server still answers. Then it is stopped, its memory
    is waited for on every node, and RECIPE is started and verified as by `up`. If that fails, the
    old recipe is started again, and the exit status is that of the failure.

    Args:
        no_restore: Do not start the old recipe again if the new one fails.
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

    title = " ".join(
        filter(None, [f"swap {recipe.name} --tp {size}", options_text(recipe.overrides)])
    )
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
