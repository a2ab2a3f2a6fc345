"""Some nodes of an inventory as a cluster of their own, for servers that run next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_cluster.config.inventory import Inventory

PRIVATE = {"bind": "loopback", "api_key": None, "tls": None, "open": False}
"""How a cluster serves that the inventory says nothing of: to its own head alone."""


def part_of(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """Return the inventory of some nodes, which keep their settings and their addresses.

    Where the first of them is not the whole inventory's head, the endpoint is on its loopback: the
    address, key and certificate of `serve` are the head's.

    Args:
        names: of the nodes; the first one becomes the head.
    """
    head, *workers = names
    nodes = {
        name: replace(inventory.nodes[name], role="head" if name == head else "worker")
        for name in names
    }
    groups = {name: members & set(names) for name, members in inventory.groups.items()}
    groups |= {"head": frozenset({head}), "worker": frozenset(workers)}
    serve = inventory.serve
    if head != inventory.head.name:
        serve = serve.model_copy(update=PRIVATE)
    return replace(inventory, nodes=nodes, groups=groups, serve=serve)
