"""`models pin`: keep a model from being pruned."""

from __future__ import annotations

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_nodes import model_nodes


@click.command()
@click.argument("model", metavar="ORG/NAME[@REVISION]")
@click.pass_obj
def command(app: App, model: str) -> None:
    """Pin a model on the selected nodes, so that `models prune` never removes it.

    With @REVISION (branch, tag or commit) only the commit that it has there now.
    """
    name, _, revision = model.partition("@")
    with model_nodes(app) as nodes:
        answers = nodes.ask("pin", name=name, revision=revision)
    changed = {node: bool(answer["changed"]) for node, answer in answers.items()}
    if app.as_json:
        app.print_json({"model": model, "changed": changed})
        return
    for node, new in changed.items():
        app.console.print(
            f"{node}: {model} " + ("is pinned now" if new else "was pinned already"),
        )
