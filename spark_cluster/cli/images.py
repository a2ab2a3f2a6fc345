"""`images`: the container images of the nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, plain_table, styled
from spark_cluster.cli.options import Finite, Group
from spark_cluster.config.extension import Allowances
from spark_cluster.engine.image_copies import (
    PrunedImages,
    StoredImages,
    is_named,
    needs_of,
    planned,
    remove,
    stored_images,
)
from spark_cluster.engine.model_upkeep import kept_recipes
from spark_cluster.errors import Failed
from spark_cluster.node.output import gigabytes
from spark_cluster.runner.session import Session


@click.group(cls=Group)
def command() -> None:
    """Look after the container images on the nodes: what is there, used and needed; prune."""


@contextlib.contextmanager
def _sessions(app: App) -> Iterator[Mapping[str, Session]]:
    """Start agents on the selected nodes; they end with the block."""
    app.import_meanwhile()
    with app.cluster.dialer.sessions(app.nodes, "images") as found:
        yield found


def _needs(app: App) -> dict[str, list[str]]:
    allow = app.allowances(Allowances())
    return needs_of(kept_recipes(app.project, app.inventory.serve.recipe_names, allow))


@command.command("list")
def list_images(app: App) -> None:
    """List the images of each node: size, the container that uses them, the recipe that needs them.

    Sizes include layers that several images share.
    """
    needs = _needs(app)
    with _sessions(app) as sessions:
        found = stored_images(sessions, needs)
    if app.as_json:
        app.print_json({"nodes": found})
        return
    for one in found:
        _show(app, one)


def _show(app: App, found: StoredImages) -> None:
    app.console.print(styled("[bold]{}[/]  {} images", found.node, len(found.images)))
    table = plain_table(
        "image", "digest", "size", "remarks",
        right=("digest", "size"), whole=("digest", "size"), fold=("image", "remarks"),
        header=False, wide=True,
    )  # fmt: skip
    for image in found.images:
        digest = (image.digests[0].partition("@")[2] if image.digests else image.id)[7:19]
        parts = [f"in use by {image.used_by[0]}" if image.used_by else "", *image.recipes]
        remarks = "; ".join(part for part in parts if part)
        table.add_row(f"  {image.shown}", digest, gigabytes(image.size), remarks)
    if found.images:
        app.console.print(table)


@command.command()
def prune(
    app: App,
    *,
    images: Annotated[tuple[str, ...], {"metavar": "[NAME:TAG|ID]..."}],
    free: Annotated[float, Finite(min=0)] = 0.0,
    apply: bool,
) -> int:
    """List the images that can go, the oldest first; with --apply, remove them.

    Never what a container stands on, nor what the inventory's recipe or one of your own recipes
    needs or is built on. Exit status 1 when Docker refuses to remove one.

    Args:
        free (GB): Stop at so much.
        apply: Remove them; without it they are only listed.
    """
    needs = _needs(app)
    with _sessions(app) as sessions:
        listed = stored_images(sessions, needs)
        _must_be_there(images, listed)
        found = [planned(one, images, int(free * 1e9)) for one in listed]
        if apply:
            found = remove(sessions, found)
    if app.as_json:
        app.print_json({"applied": apply, "nodes": found})
    else:
        for one in found:
            _show_pruned(app, one, apply=apply)
        if not apply and any(one.removed for one in found):
            app.console.print("nothing was removed yet: --apply does it")
    return 1 if any(one.refused for one in found) else 0


def _must_be_there(names: tuple[str, ...], listed: list[StoredImages]) -> None:
    """Raise Failed for a name that no node has."""
    for name in names:
        if not any(is_named(image, [name]) for one in listed for image in one.images):
            raise Failed(f"{name} is on no node", hint="`spark-cluster images list` shows them")


def _show_pruned(app: App, found: PrunedImages, *, apply: bool) -> None:
    did = "freed" if apply else "would be freed"
    line = styled("[bold]{}[/]  up to {} {}", found.node, gigabytes(found.freed), did)
    app.console.print(line)
    verb = "removed" if apply else "would go"
    for image in found.removed:
        line = styled("  {}  {}  {}", verb, image.shown, gigabytes(image.size))
        app.console.print(line, soft_wrap=True)
    for refused in found.refused:
        app.console.print(styled("  {}  {}", mark("fail"), refused.reason), soft_wrap=True)
    for kept in found.kept:
        line = styled("  stays  {}  [dim]{}[/]", kept.name, kept.reason)
        app.console.print(line, soft_wrap=True)
