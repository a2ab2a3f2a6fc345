"""Roles called on nodes with facts: lists of resources, no host anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_cluster.config.project import Project
from spark_cluster.config.topology import Node
from spark_cluster.resources import Resource


@pytest.fixture
def role() -> Callable[..., list[Resource]]:
    """`role("power", node, clock_cap=False)`: what the shipped role yields."""
    project = Project()

    def call(name: str, node: Node, /, **settings: Any) -> list[Resource]:
        loaded = project.load_role(name)
        return list(loaded.function(node, loaded.settings_model(**settings)))

    return call
