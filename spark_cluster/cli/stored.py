"""What the nodes have stored: `models` in their hub caches, and container `images`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, TypeVar

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, plain_table
from spark_cluster.cli.display import tell
from spark_cluster.cli.options import DeclaredGroup, Finite
from spark_cluster.config.extension import Allowances
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine import hub_models, model_upkeep
from spark_cluster.engine.deployment import root_on
from spark_cluster.engine.hub_models import Nodes, PulledModel, Wanted, hub_folder
from spark_cluster.engine.image_copies import (
    PrunedImages,
    StoredImages,
    is_named,
    needs_of,
    planned,
    remove,
    stored_images,
)
from spark_cluster.engine.model_upkeep import (
    ModelSizes,
    Pruned,
    StoredModels,
    copy_model,
    kept_recipes,
    needed,
)
from spark_cluster.errors import Failed, Refused, SparkClusterError, UsageError, VerificationFailed
from spark_cluster.node.output import counted, gigabytes
from spark_cluster.node.store.manifest import Manifest, is_repository
from spark_cluster.resources.hub_model import HubModel
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

OfNode = TypeVar("OfNode", StoredModels, Pruned, ModelSizes, StoredImages, PrunedImages)

Gone = TypeVar("Gone", Pruned, PrunedImages)

Lost = dict[str, SparkClusterError]
"""Nodes that were not reached, and why."""

DAY_S = 86400.0

_Some = Annotated[tuple[str, ...], {"metavar": "[ORG/NAME[@REVISION]]..."}]
_One = Annotated[str, {"metavar": "ORG/NAME[@REVISION]"}]


@click.group(cls=DeclaredGroup)
def models() -> None:
    """Look after the models on the nodes: what is there, whole, used, pinned; pull, verify."""


@models.command("list")
def list_models(app: App) -> int:
    """List the models on each node: size, last use, pins and missing files.

    Names and sizes are compared; `spark-cluster models verify` reads the contents. Models that
    other tools have downloaded into the same cache are listed, too. Where a node is not reached,
    those of the others are shown, with exit status 3.
    """
    lost = Lost()
    with _nodes(app, lost) as nodes:
        found = model_upkeep.stored(nodes, needed(_kept(app)))
    _show(app, found, _show_stored)
    return app.tell_lost(lost)


@models.command()
def size(app: App) -> int:
    """Show the disk space of the models on each node, by recipe, and what pruning would free.

    Where a node is not reached, the others are shown, with exit status 3.
    """
    needs, lost = needed(_kept(app)), Lost()
    with _nodes(app, lost) as nodes:
        found = model_upkeep.sizes(nodes, needs)
    _show(app, found, _show_sizes)
    return app.tell_lost(lost)


@models.command()
def pull(
    app: App,
    *,
    model: Annotated[str, {"metavar": "MODEL[@REVISION]"}],
    on: str | None,
    all_files: bool,
    endpoint: str = "",
    offline: bool,
    yes: bool,
) -> None:
    """Fetch a model from the hub into a node's hub cache, and check it.

    A branch that has moved is followed. Files on the node are not fetched again, and an interrupted
    pull resumes where it ended. It runs on the node: closing the laptop does not stop it, and the
    same command reattaches to it. A hub token is taken from HF_TOKEN.

    Args:
        on (NODE): Pull to this node (default: the head).
        all_files: Also fetch files that hold the same weights in another format.
        endpoint (URL): Ask this mirror of the hub.
        offline: Do not use the network: succeed only if the whole revision is on the node.
        yes: Fetch more than 50 GB without asking.
    """
    wanted = _wanted(model)
    with app.cluster.play("models pull", app.nodes) as run:
        play = run.open()
        node = model_upkeep.named_nodes(play, (on,))[on] if on else play.head
        hub = _hub_folders(app)[node.name]
        if offline:
            hint = "leave --offline out to fetch it; `models copy` takes it from another node"
            _, manifest = hub_models.require_complete(play, [node], wanted, hub, hint)
        else:
            pulled_one = hub_models.hub_model(
                play, node, wanted, hub, endpoint=endpoint, all_files=all_files
            )
            manifest = _pulled(play, node, pulled_one, yes=yes)
    pulled = PulledModel.of(node.name, manifest)
    app.show_run(run, {"model": pulled}, pulled, lambda app, one: app.console.print(str(one)))


@models.command()
def copy(
    app: App,
    *,
    model: Annotated[str, {"metavar": "ORG/NAME[@REVISION]|/FOLDER"}],
    source: str = "",
    targets: tuple[str, ...],
    no_encrypt: bool,
    streams: Annotated[int, click.IntRange(1, 16)] | None,
) -> None:
    """Copy a model, or a folder of plain files, between nodes, over the fabric if there is one.

    Only missing files are sent, each is checked against the hub's hash as it arrives, and an
    interrupted copy resumes where it ended. The copy continues if this command is interrupted; run
    the command again to watch it. A folder is named by its absolute path, the same on all nodes.
    Its files are hashed on the sending node, and read again only when they have changed.

    Args:
        source (--from NODE): Node to copy from (default: the first with the whole model; for a
            folder, the first node).
        targets (--to NODE): Node to copy to; repeatable (default: all others).
        no_encrypt: Do not encrypt, which takes less CPU time. Contents are still checked, but
            anyone on the network path can read them.
        streams: Connections to each address of a sender (default: 4; on a receiver of fewer than
            16 cores 2 or 3).
    """
    with app.cluster.play("models copy", app.nodes) as run:
        done = copy_model(
            run.open(),
            model,
            source=source,
            targets=targets,
            encrypt=not no_encrypt,
            streams=streams or 0,
        )
    app.show(run.document(model=model, copies=done), "\n".join(map(str, done)))


@models.command()
def verify(app: App, *, models: _Some) -> int:
    """Compare each file of models (all, if none is named) with the hub's hash, on their nodes.

    Each byte is read once, in a systemd unit on the node that continues without this command. Exit
    status 5 when a file is damaged or missing; `spark-cluster models repair` fetches just these.
    """
    with _nodes(app) as nodes:
        found = model_upkeep.verify(nodes, models, _progress)
    none = "there is no model in the nodes' hub caches"
    app.show({"models": found}, "\n".join(map(str, found)) or none)
    bad = [one for one in found if not one.sound]
    if bad and not app.as_json:
        names = sorted({f"{one.repository}@{one.commit}" for one in bad})
        raise VerificationFailed(
            f"{len(bad)} of {len(found)} models are damaged or incomplete",
            hint=f"spark-cluster models repair {' '.join(names)}",
        )
    return VerificationFailed.exit_code if bad else 0


@models.command()
def repair(app: App, *, models: _Some) -> None:
    """Verify models (all, if none is named), remove damaged files and get them again.

    They are copied from a selected node where the same revision is intact, or fetched from the hub.
    Missing and broken links are recreated.
    """
    with app.cluster.play("models repair", app.nodes) as run:
        found = model_upkeep.repair(run.open(), _hub_folders(app), models, _progress)
    text = "\n".join(map(str, found)) or "all models are sound"
    app.show(run.document(models=found), text)


@models.command("prune")
def prune_models(
    app: App,
    *,
    models: _Some,
    free: Annotated[float, Finite(min=0)] = 0.0,
    unused_for: Annotated[float, Finite(min=0)] = 0.0,
    apply: bool,
) -> None:
    """List the models that can go, the least recently used first; with --apply, remove them.

    Models are kept that the inventory's recipe or one of your own needs, that are pinned, that a
    process was started with, or that are being downloaded.

    Args:
        free (GB): Stop once this many GB are freed.
        unused_for (DAYS): Only models not used for this many days.
        apply: Remove them; without it they are only listed.
    """
    needs = needed(_kept(app))
    size, unused_s = int(free * 1e9), unused_for * DAY_S
    with _nodes(app) as nodes:
        found = model_upkeep.prune(
            nodes, needs, only=models, free=size, unused_s=unused_s, apply=apply
        )
    _show_pruning(app, found, apply=apply)


@models.command()
def pin(app: App, *, model: _One) -> None:
    """Pin a model on the selected nodes, so that `models prune` never removes it.

    With @REVISION (branch, tag or commit), only the commit that it names on the node now.
    """
    _change(app, model, True, "is pinned now", "was pinned already")


@models.command()
def unpin(app: App, *, model: _One) -> None:
    """Unpin a model on the selected nodes, so that `models prune` may remove it.

    With @REVISION (branch, tag or commit), only the commit that it names on the node now.
    """
    _change(app, model, False, "is unpinned now", "was not pinned")


# -- what they share -------------------------------------------------------------------------------


@contextlib.contextmanager
def _sessions(app: App, what: str, lost: Lost | None = None) -> Iterator[Mapping[str, Session]]:
    """Start agents on the selected nodes; they end with the block.

    Args:
        lost: takes the errors of nodes that are not reached, which are raised otherwise.
    """
    app.import_meanwhile()
    with app.cluster.dialer.sessions(app.nodes, what, lost) as found:
        yield found


@contextlib.contextmanager
def _nodes(app: App, lost: Lost | None = None) -> Iterator[Nodes]:
    """Start agents that are asked about the models of their nodes; `lost` is as in `_sessions`."""
    hubs = _hub_folders(app)
    with _sessions(app, "models", lost) as sessions:
        yield Nodes(sessions, hubs)


def _hub_folders(app: App) -> dict[str, str]:
    """Return the hub cache of each selected node."""
    return {node.name: hub_folder(root_on(node)) for node in app.nodes}


def _kept(app: App) -> list[Recipe]:
    """Return the recipes whose models and images stay: the inventory's and the user's own."""
    served = app.inventory.serve.recipe_names
    return kept_recipes(app.project, served, app.cluster.allowances(Allowances()))


def _show(
    app: App, found: Sequence[OfNode], line: Callable[[App, OfNode], None], **more: object
) -> None:
    """Show what was found, node by node, or as one document."""

    def show(app: App, _: object) -> None:
        for one in found:
            line(app, one)

    app.show({**more, "nodes": found}, show)


def _show_pruning(app: App, found: list[Gone], *, apply: bool) -> None:
    """Show what went or would go, and say where it is still there."""
    _show(app, found, partial(_show_pruned, apply=apply), applied=apply)
    if not app.as_json and not apply and any(one.removed for one in found):
        app.console.print("nothing was removed yet: --apply does it")


def _progress(node: str, text: str) -> None:
    """Show a line of progress where people look and programs do not."""
    tell(f"{node}: {text}")


def _age(when: float) -> str:
    """Return how long ago something was."""
    seconds = max(0.0, time.time() - when)
    for unit, length in (("d", DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now" if when else "never"


def _change(app: App, model: str, pinned: bool, done: str, nothing: str) -> None:
    """Pin or unpin a model on the selected nodes, and tell of each.

    Args:
        done: what is said of a node where that changed something.
        nothing: what is said of the others.
    """
    with _nodes(app) as nodes:
        model_upkeep.named(nodes, [model] if pinned else [])
        answers = nodes.ask("pin", name=model, pinned=pinned)
    changed = {node: bool(answer["changed"]) for node, answer in answers.items()}
    lines = (f"{node}: {model} {done if new else nothing}" for node, new in changed.items())
    app.show({"model": model, "changed": changed}, "\n".join(lines))


# -- what is shown ---------------------------------------------------------------------------------


def _show_rows(app: App, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show a table of what a node has: its name, short figures, and remarks."""
    figures = columns[1:-1]
    table = plain_table(*columns, right=figures, whole=figures, header=False, wide=True)
    for name, *cells in rows:
        table.add_row(f"  {name}", *cells)
    if table.rows:
        app.console.print(table)


def _show_stored(app: App, found: StoredModels) -> None:
    taken, count = gigabytes(found.size), counted(len(found.models), "model")
    text = f"{taken} in {count} in the hub's cache, {gigabytes(found.free)} free"
    app.console.say("[bold]{}[/]  {}", found.node, text)
    listed = (
        (model.shown, gigabytes(model.size), _age(model.last_used), model.remarks)
        for model in reversed(found.models)
    )
    _show_rows(app, ("name", "size", "used", "remarks"), listed)
    if found.served_outside:
        app.console.print(f"  served from {found.served_outside}, which is not in the hub's cache")


def _show_sizes(app: App, sizes: ModelSizes) -> None:
    whole, free = gigabytes(sizes.size), gigabytes(sizes.free)
    app.console.say("[bold]{}[/]  {} in models, {} free on the disk", sizes.node, whole, free)
    rows = [(taken, f"recipe {name}") for name, taken in sorted(sizes.recipes.items())]
    more = (
        (sizes.prunable, f"that `{app.command('models prune --apply')}` would free"),
        (sizes.unfinished, "in half files, with which a pull goes on"),
        (sizes.unused, "that no revision has"),
    )
    for taken, what in (*rows, *(one for one in more if one[0])):
        app.console.say("  {}  {}", gigabytes(taken).rjust(9), what)


def _show_pruned(app: App, found: Pruned | PrunedImages, *, apply: bool) -> None:
    did, verb = ("freed", "removed") if apply else ("would be freed", "would go")
    refused = found.refused if isinstance(found, PrunedImages) else []
    most = "up to " if isinstance(found, PrunedImages) else ""  # images can share layers
    told = f"{most}{gigabytes(found.freed)} {did}"
    if not found.freed and not found.removed:
        told = "nothing was removed" if refused else "there is nothing to remove"
    app.console.say("[bold]{}[/]  {}", found.node, told)
    for one in found.removed:
        app.console.say("  {}  {}  {}", verb, one.shown, gigabytes(one.size))
    for left in refused:
        app.console.say("  {}  {}", mark("fail"), left.reason)
    for kept in found.kept:
        app.console.say("  stays  {}  [dim]{}[/]", kept.shown, kept.reason)


# -- pulling ---------------------------------------------------------------------------------------


def _wanted(model: str) -> Wanted:
    """Return the model and revision that a word names. Raises UsageError."""
    wanted = Wanted.named(model)
    if not is_repository(wanted.repository):
        raise UsageError(
            f"{wanted.repository!r} is not the name of a model on the hub",
            hint="give ORG/NAME or ORG/NAME@REVISION, for example Qwen/Qwen3-0.6B@main",
        )
    return wanted


def _pulled(play: Play, node: Node, model: HubModel, *, yes: bool) -> Manifest:
    """Fetch a model; a large download is asked about first. Raises Refused without a yes."""
    found = hub_models.preview(play, node, model)
    if found.missing > hub_models.LARGE and not yes:
        text = hub_models.warning(model.repository, node.name, found)
        consent = play.options.consent
        if consent is None or not consent(f"{text}. Fetch it?"):
            raise Refused(text, where=node.name, hint="--yes fetches it without asking")
    return hub_models.pull(play, node, model)


# -- `images`: the container images of the nodes ---------------------------------------------------


@click.group(cls=DeclaredGroup)
def images() -> None:
    """Look after the container images on the nodes: what is there, used and needed; prune."""


@images.command("list")
def list_images(app: App) -> int:
    """List the images of each node: size, the container that uses them, the recipe that needs them.

    Sizes include layers that several images share. Where a node is not reached, those of the others
    are shown, with exit status 3.
    """
    needs, lost = needs_of(_kept(app)), Lost()
    with _sessions(app, "images", lost) as sessions:
        found = stored_images(sessions, needs)
    _show(app, found, _show_images)
    return app.tell_lost(lost)


def _show_images(app: App, found: StoredImages) -> None:
    app.console.say("[bold]{}[/]  {}", found.node, counted(len(found.images), "image"))
    listed = (
        (image.shown, image.short_digest, gigabytes(image.size), image.remarks)
        for image in found.images
    )
    _show_rows(app, ("image", "digest", "size", "remarks"), listed)


@images.command("prune")
def prune_images(
    app: App,
    *,
    images: Annotated[tuple[str, ...], {"metavar": "[NAME:TAG|ID]..."}],
    free: Annotated[float, Finite(min=0)] = 0.0,
    apply: bool,
) -> int:
    """List the images that can go, the oldest first; with --apply, remove them.

    Images that a container uses, or that the inventory's recipe or one of your own recipes needs or
    is built on, are kept. Exit status 1 when Docker refuses to remove one.

    Args:
        free (GB): Stop once this many GB are freed.
        apply: Remove them; without it they are only listed.
    """
    needs = needs_of(_kept(app))
    with _sessions(app, "images") as sessions:
        listed = stored_images(sessions, needs)
        _must_be_there(images, listed)
        found = [planned(one, images, int(free * 1e9)) for one in listed]
        if apply:
            found = remove(sessions, found)
    _show_pruning(app, found, apply=apply)
    return 1 if any(one.refused for one in found) else 0


def _must_be_there(names: tuple[str, ...], listed: list[StoredImages]) -> None:
    """Raise Failed for a name that no node has."""
    for name in names:
        if not any(is_named(image, [name]) for one in listed for image in one.images):
            raise Failed(f"{name} is on no node", hint="`spark-cluster images list` shows them")
