"""`models pull`: fetch a model from the hub into the hub cache of nodes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_nodes import hub_folders
from spark_cluster.errors import Refused, UsageError

if TYPE_CHECKING:
    from spark_cluster.engine.copies.pull import From, Preview
    from spark_cluster.engine.copies.state import Wanted
    from spark_cluster.runner.play import Play
    from spark_cluster.topology import Node


@dataclass(frozen=True)
class PulledModel:
    """A revision that is whole on a node."""

    node: str
    repository: str
    commit: str
    files: int
    bytes: int


@click.command("pull")
@click.argument("model", metavar="MODEL[@REVISION]")
@click.option("--on", "on", metavar="NODE", help="Pull to this node (default: the head).")
@click.option(
    "--all-files",
    is_flag=True,
    help="Also fetch files that hold the same weights in another format.",
)
@click.option("--endpoint", default="", metavar="URL", help="Ask this mirror of the hub.")
@click.option(
    "--offline",
    is_flag=True,
    help="Ask no network: succeed only if the revision is on the node, whole.",
)
@click.option("--yes", is_flag=True, help="Fetch more than 50 GB without asking.")
@click.pass_obj
def command(
    app: App, model: str, on: str | None, all_files: bool, endpoint: str, offline: bool, yes: bool
) -> None:
    """Fetch a model from the hub into a node's hub cache, and check it.

    A branch that has moved is followed. What is there is not fetched again, and a pull that was
    cut goes on where it was. It runs on the node: closing the laptop does not stop it, and the same
    command finds it again. A hub token is taken from HF_TOKEN.
    """
    app.connect_early()
    from spark_cluster.engine.copies.pull import settings_source
    from spark_cluster.engine.copies.state import Wanted
    from spark_cluster.runner.options import Options

    repository, _, revision = model.partition("@")
    wanted = Wanted(_checked(repository), revision or "main")
    with app.play("models pull", app.nodes, Options()) as run:
        play = run.open()
        node = _node(play, on)
        hub = hub_folders(app)[node.name]
        source = settings_source(app.inventory.nodes[node.name], endpoint)
        if offline:
            manifest = _there(play, node, wanted, hub)
        else:
            manifest = _pulled(
                app, play, node, wanted, hub, replace(source, all_files=all_files), yes=yes
            )
        run.finish()
        pulled = PulledModel(
            node.name, manifest.repository, manifest.commit, len(manifest.files), manifest.size
        )
        if app.as_json:
            app.print_json(run.to_dict(model=vars(pulled)))
        else:
            app.show_recap()
            app.console.print(
                f"{pulled.repository}@{pulled.commit[:12]} is on {pulled.node}: {pulled.files} "
                f"files, {pulled.bytes / 1e9:.2f} GB"
            )


def _checked(repository: str) -> str:
    from spark_cluster.node.store.manifest import is_repository

    if not is_repository(repository):
        raise UsageError(
            f"{repository!r} is not the name of a model on the hub",
            hint="give ORG/NAME or ORG/NAME@REVISION, for example Qwen/Qwen3-0.6B@main",
        )
    return repository


def _node(play: Play, name: str | None) -> Node:
    if name is None:
        return play.head
    for node in play.nodes:
        if node.name == name:
            return node
    known = ", ".join(node.name for node in play.nodes)
    raise UsageError(f"--on: no node {name!r} in this run", hint=f"one of: {known}")


def _there(play: Play, node: Node, wanted: Wanted, hub: str) -> Any:
    """The manifest of what the node has; nothing else is asked."""
    from spark_cluster.engine.copies.state import models_on

    have = models_on(play, [node], wanted, hub)[node.name]
    if not have.whole:
        raise Refused(
            f"{wanted.repository}@{wanted.revision} is not whole: {have.shortfall}",
            where=node.name,
            hint="leave --offline out to fetch it; spark-cluster models copy takes it from "
            "another node that has it",
        )
    return have.manifest


def _pulled(
    app: App, play: Play, node: Node, wanted: Wanted, hub: str, source: From, *, yes: bool
) -> Any:
    from spark_cluster.engine.copies.pull import LARGE, preview, pull

    found = preview(play, node, wanted, hub=hub, source=source)
    if found.missing > LARGE and not yes:
        _agree(app, node.name, wanted.repository, found)
    return pull(play, node, wanted, hub=hub, source=source)


def _agree(app: App, node: str, repository: str, found: Preview) -> None:
    """Ask before a large download. Raises Refused without a yes."""
    from spark_cluster.engine.copies.pull import warning

    text = warning(repository, node, found)
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not app.as_json
    if interactive:
        app.console.print(text)
        if click.confirm("Fetch it?", default=False):
            return
    raise Refused(text, where=node, hint="--yes fetches it without asking")
