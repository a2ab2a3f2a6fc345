"""Roles called on nodes with facts: lists of resources, no host anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from role_samples import yielded

from spark_cluster.resources import Resource


@pytest.fixture
def role() -> Callable[..., list[Resource]]:
    """`role("power", node, clock_cap=False)`: what the shipped role yields."""
    return yielded
