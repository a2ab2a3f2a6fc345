"""`models unpin`: let a pinned model be pruned."""

from __future__ import annotations

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_nodes import model_nodes


@click.command()
@click.argument("model", metavar="ORG/NAME[@REVISION]")
@click.pass_obj
def command(app: App, model: str) -> None:
    """Unpin a model on the selected nodes, so that `models prune` may remove it.

    With @REVISION (branch, tag or commit) only the commit that it has there now.
    """
    name, _, revision = model.partition("@")
    with model_nodes(app) as nodes:
        answers = nodes.ask("unpin", name=name, revision=revision)
    changed = {node: bool(answer["changed"]) for node, answer in answers.items()}
    if app.as_json:
        app.print_json({"model": model, "changed": changed})
        return
    for node, new in changed.items():
        app.console.print(
            f"{node}: {model} " + ("is unpinned now" if new else "was not pinned"),
        )
