"""The folder of the engine's caches: that of the role `caches` in the inventory, or the default."""

from __future__ import annotations

from collections.abc import Iterable

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.errors import Refused


def root_on(node: InventoryNode) -> str:
    """The folder of the caches on a node, as the setting `root` of the role `caches` has it."""
    return str(node.settings_for("caches").data.get("root", CACHE_ROOT)).rstrip("/")


def root_of_all(nodes: Iterable[InventoryNode]) -> str:
    """The folder of the caches on all nodes that serve together.

    Raises:
        Refused: it differs; the containers of all ranks are made with one.
    """
    roots = {node.name: root_on(node) for node in nodes}
    if len(set(roots.values())) > 1:
        listed = ", ".join(f"{root} on {name}" for name, root in roots.items())
        raise Refused(
            f"the caches of nodes that serve together have different roots: {listed}",
            hint="give `caches: {root: ...}` once, under `settings` of the inventory; a second "
            "disk can be mounted at the same path on each node",
        )
    return next(iter(roots.values()), CACHE_ROOT)
