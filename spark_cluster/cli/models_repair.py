"""`models repair`: remove damaged contents of models and have just these again."""

from __future__ import annotations

import dataclasses

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_nodes import hub_folders, short
from spark_cluster.cli.models_verify import progress
from spark_cluster.node.sizes import gigabytes


@click.command()
@click.argument("models", nargs=-1, metavar="[ORG/NAME[@REVISION]]...")
@click.pass_obj
def command(app: App, models: tuple[str, ...]) -> None:
    """Verify models, remove what is damaged, and have just that again; all models without a name.

    It is copied from a selected node where the same revision is sound, else fetched from the hub.
    Links that are missing or broken are made again.
    """
    app.connect_early()
    from spark_cluster.engine.copies.repair import fetching, repair
    from spark_cluster.engine.copies.upkeep import Nodes
    from spark_cluster.runner.options import Options

    hubs = hub_folders(app)
    with app.play("models repair", app.nodes, Options()) as run:
        play = run.open()
        nodes = Nodes(play.sessions, hubs)
        found = repair(play, nodes, models, progress, fetching(play, hubs))
    if app.as_json:
        app.print_json(run.to_dict(models=[dataclasses.asdict(one) for one in found]))
        return
    for one in found:
        name = f"{one.node}  {short(one.repository, one.commit)}"
        again = f", {gigabytes(one.fetched)} from {one.source}" if one.source else ""
        line = f"{name}  {one.removed} damaged removed, {one.links} links made{again}"
        app.console.print(line, soft_wrap=True)
    if not found:
        app.console.print("all models are sound")
