"""The file of an inventory: where it is, who may have written it, its data as they are written."""

from __future__ import annotations

from pathlib import Path

from spark_cluster.config.yamlfile import Sourced, load, shown
from spark_cluster.errors import InvalidFile
from spark_cluster.loader.project import Project

DEFAULT = "inventory.yaml"
"""Of the project folder, when no inventory is named."""


def load_source(name: str | Path | None, project: Project) -> Sourced:
    """Read an inventory's file, without a check of what is in it.

    It is data, but says where sudo passwords are sent and which host keys are believed: one that
    others can write is not used.

    Args:
        name: a file, the name of one in `inventories/`, or None for the project's own
            `inventory.yaml`.
        project: where names are looked up.

    Raises:
        InvalidFile: it does not exist, or is not YAML.
        UsageError: there is no inventory of that name.
        Refused: others can write it.
    """
    path = project.folder / DEFAULT if name is None else project.resolve("inventories", name)
    if not path.exists():
        raise InvalidFile(
            "no such inventory",
            where=shown(path),
            hint="`spark-cluster init` writes one; or name one with --inventory",
        )
    project.must_be_own(path, "the inventory")
    return read_source(path)


def read_source(path: Path) -> Sourced:
    """Read an inventory file.

    Raises:
        InvalidFile: it is missing, unreadable, or not YAML.
    """
    return load(path, "inventory")
