"""Makers that tests of several folders share: files, inventories, nodes, recipes, logs."""

from collections.abc import Callable, Sequence
from io import BytesIO
from ipaddress import IPv4Interface
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pydantic import BaseModel

from spark_cluster.agent.apply import DocumentRun
from spark_cluster.config.facts import Facts, Interface, Memory
from spark_cluster.config.inventory import Inventory, checked
from spark_cluster.config.project import Project, shipped_folder
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.topology import Node
from spark_cluster.config.yamlfile import load
from spark_cluster.errors import InvalidFile
from spark_cluster.issues.log_reading import LogSource
from spark_cluster.node.host import Host
from spark_cluster.resources.base import Resource

SHIPPED = Project(shipped_folder(), shipped_folder())
"""The project that ships: its recipes, roles and playbooks."""

KNOWN_ISSUE = (Path(__file__).parent / "data/known_issue.toml").read_text()
"""A file of a project's own known issues, with one."""

ONE_NODE = "nodes:\n  spark1: {address: 10.0.0.1, roles: [head]}\n"
TWO_NODES = f"{ONE_NODE}  spark2: {{address: 10.0.0.2}}\n"
"""Inventories of nodes at no port."""

GIB_KIB = 2**20
SPARK_GIB = 121.69
"""Memory of a Spark as Linux counts it."""


def put(path: Path, content: str | bytes = "", mode: int = 0o644) -> Path:
    """Write a file, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def read_inventory(path: Path) -> Inventory:
    """Read and check an inventory file."""
    return checked(load(path, "inventory"))


def make_inventory(folder: Path, text: str) -> Inventory:
    """The inventory of this text, as `inventory.yaml` of a folder."""
    return read_inventory(put(folder / "inventory.yaml", dedent(text)))


def load_inventory(name: str | Path | None, project: Project) -> Inventory:
    """An inventory as a command reads it: by name or path, or the project's own."""
    return checked(project.inventory_source(name), project.list("roles"))


def error_of(read: Callable[..., object], *args: Any, folder: Path) -> str:
    """Return the message about a file that cannot be used, with file names below the folder."""
    with pytest.raises(InvalidFile) as caught:
        read(*args)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{folder}/", "")


def make_node(
    name: str,
    available: float = 118,
    *,
    head: bool = True,
    address: str = "10.0.0.1",
    own: Sequence[str] = ("10.0.0.1/24",),
) -> Node:
    """A Spark with facts.

    Args:
        available: memory that nothing holds, GiB.
        address: as the inventory has it.
        own: the addresses of its interface.
    """
    facts = Facts(
        hostname=name,
        memory=Memory(round(SPARK_GIB * GIB_KIB), round(available * GIB_KIB)),
        interfaces=(Interface("eth0", up=True, addresses=tuple(map(IPv4Interface, own))),),
    )
    return Node(name, address, is_head=head, facts=facts)


def make_recipe(name: str = "gemma4-31b-nvfp4", /, **changes: object) -> Recipe:
    """A recipe that ships, with other values in some of its fields, or of those of its parts."""
    recipe = load_recipe(name, SHIPPED)
    for field, value in changes.items():
        part = getattr(recipe, field)
        if isinstance(part, BaseModel) and isinstance(value, dict):
            changes[field] = part.model_copy(update=value)
    return recipe.model_copy(update=changes)


def apply(
    resources: Sequence[Resource], host: Host, emit: Callable[..., None], *, diff: bool = False
) -> dict[str, Any]:
    """Apply resources in this process, without an agent."""
    return DocumentRun(resources, host, emit, diff).apply()


def log_of(text: str, name: str = "x.log") -> LogSource:
    """A log that holds this text."""
    return LogSource(name, lambda: BytesIO(text.encode()))
