"""The hub's own library with Xet, pinned, in an environment of its own on each node."""

from __future__ import annotations

from collections.abc import Iterator

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.node import paths
from spark_cluster.resources import Package, Resource, VirtualEnvironment

VERSION = "2.4.0"
XET_VERSION = "1.8.0"
TAGS = ("models",)
"""`--tags models` fetches models, for which it is needed."""


class Settings(Schema):
    """Settings of the role `hub_library`."""

    version: str = VERSION
    """of huggingface_hub"""
    xet_version: str = XET_VERSION
    """of hf_xet"""
    path: str = paths.HUB_LIBRARY
    """folder of the environment"""
    pip_options: tuple[str, ...] = ()
    """options of pip, such as --index-url=..., where PyPI cannot be reached"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:  # noqa: ARG001
    """The environment: models do not wait for the engine's image."""
    yield Package("python3-venv", tags=TAGS)
    pinned = (f"huggingface_hub=={settings.version}", f"hf_xet=={settings.xet_version}")
    yield VirtualEnvironment(settings.path, (*settings.pip_options, *pinned), tags=TAGS)
