"""Plans of what is served, for tests: nodes in, no file and no connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine.copies.state import hub_folder
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.resolve import resolve
from spark_cluster.node.store.layout import snapshot_folder
from spark_cluster.topology import Node


def inventory_of(*nodes: Node, **serve: Any) -> Inventory:
    """Return an inventory of these nodes; `serve` is its section of that name."""
    entries = {
        node.name: InventoryNode(
            node.name, node.address, node.index, "head" if node.is_head else "worker"
        )
        for node in nodes
    }
    return Inventory(Path("inventory.yaml"), entries, {}, ServeEntry(**serve), (), 9000)


def snapshot_of(repository: str) -> str:
    """Return the folder of a revision of this model in the hub cache of nodes."""
    return snapshot_folder(hub_folder(), repository, "c" * 40)


def located(recipe: Recipe) -> Recipe:
    """Return the recipe as it is when its models are on the nodes."""
    names = [recipe.model.name, recipe.drafter.name if recipe.drafter else None]
    return recipe.located({name: snapshot_of(name) for name in names if name})


def plan_for(recipe: Recipe, *nodes: Node, tp: int | None = None, **serve: Any) -> Server:
    """Return what serves a recipe on nodes that have its models, all unless `tp` says less."""
    return resolve(located(recipe), inventory_of(*nodes, **serve), nodes, tp or len(nodes))
