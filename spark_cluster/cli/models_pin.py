"""`models pin`: keep a model from being pruned."""

from __future__ import annotations

from typing import Literal

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
    change(app, model, "pin", "is pinned now", "was pinned already")


def change(app: App, model: str, what: Literal["pin", "unpin"], done: str, nothing: str) -> None:
    """Pin or unpin a model on the selected nodes, and tell of each.

    Args:
        done: what is said of a node where that changed something.
        nothing: what is said of the others.
    """
    name, _, revision = model.partition("@")
    with model_nodes(app) as nodes:
        answers = nodes.ask(what, name=name, revision=revision)
    changed = {node: bool(answer["changed"]) for node, answer in answers.items()}
    if app.as_json:
        app.print_json({"model": model, "changed": changed})
        return
    for node, new in changed.items():
        app.console.print(f"{node}: {model} {done if new else nothing}")
