"""The load generator GuideLLM, pinned, in an environment of its own next to the endpoint."""

from __future__ import annotations

from collections.abc import Iterator

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.node import paths
from spark_cluster.resources import Package, Resource, VirtualEnvironment

VERSION = "0.8.1"


class Settings(Schema):
    """Settings of the role `guidellm`."""

    version: str = VERSION
    """of the tool; cells of another version than the default fail"""
    path: str = paths.GUIDELLM
    """folder of the environment"""
    pip_options: tuple[str, ...] = ("--extra-index-url=https://download.pytorch.org/whl/cpu",)
    """options of pip; the default has PyTorch without CUDA, which saves 5 GB"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The environment, on the node where the endpoint is: no network lies between them."""
    if not node.is_head:
        return
    yield Package("python3-venv")
    requirements = (*settings.pip_options, f"guidellm=={settings.version}")
    yield VirtualEnvironment(settings.path, requirements)
