"""The virtual environment of the engine, where the recipe says `runtime: venv`."""

from __future__ import annotations

from collections.abc import Iterator


from spark_cluster.config.schema import Schema

from spark_cluster.resources import VirtualEnvironment
from spark_cluster.config.topology import Node


class Settings(Schema):
    """Settings of the role `venv`; `up` gives them from the recipe."""

    path: str
    """folder on the node"""
    requirements: tuple[str, ...] = ()
    """what it is made of, pinned; without any it must be there"""
    python: str = "python3"
    """what it is made with"""


def role(node: Node, settings: Settings) -> Iterator[VirtualEnvironment]:  # noqa: ARG001
    """The environment, made with uv or pip on the node, or as it is there."""
    yield VirtualEnvironment(settings.path, settings.requirements, python=settings.python)
