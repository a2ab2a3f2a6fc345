"""The load generator llama-benchy, pinned, in an environment of its own next to the endpoint."""

from __future__ import annotations

from collections.abc import Iterator

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.node import paths
from spark_cluster.resources import Package, Resource, VirtualEnvironment

VERSION = "0.4.0"


class Settings(Schema):
    """Settings of the role `llama_benchy`."""

    version: str = VERSION
    """of the tool; cells of another version than the default fail"""
    path: str = paths.LLAMA_BENCHY
    """folder of the environment"""
    pip_options: tuple[str, ...] = ()
    """options of pip, such as --index-url=..., where PyPI cannot be reached"""
    book: str = ""
    """text file on the head to take prompts from; the tool downloads one without it"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The environment, on the node where the endpoint is: no network lies between them."""
    if not node.is_head:
        return
    yield Package("python3-venv")
    requirements = (*settings.pip_options, f"llama-benchy=={settings.version}")
    yield VirtualEnvironment(settings.path, requirements)
