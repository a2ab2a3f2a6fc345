"""Inventories by name or path, read and checked."""

from __future__ import annotations

from pathlib import Path

from spark_cluster.config.inventory import Inventory, checked
from spark_cluster.loader.inventory_source import load_source
from spark_cluster.loader.project import Project


def load_inventory(name: str | Path | None, project: Project) -> Inventory:
    """Read and check an inventory; see `inventory_source.load_source`.

    Raises:
        InvalidFile: it does not exist or is wrong, with every problem and its line.
        UsageError: there is no inventory of that name.
        Refused: others can write it.
    """
    return checked(load_source(name, project), project.list("roles"))
