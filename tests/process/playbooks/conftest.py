"""The Ray that containers would be."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_server import RayServer, ray_server


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[RayServer]:
    """A Ray of two nodes that asks no one for a token."""
    with ray_server(tmp_path, token="") as made:
        made.has_nodes("192.168.177.11", "192.168.177.12")
        yield made
