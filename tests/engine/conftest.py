"""Ports and nodes between which tests copy, and a hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import checkpoints
import pytest
from checkpoints import SMALL
from fake_cluster import FakeCluster, Make
from free_ports import free_port

from spark_cluster.engine.copies import copy as copying
from spark_cluster.lab.hub import LabHub, serve


@pytest.fixture
def own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders listen on ports that no other test has."""
    monkeypatch.setattr(copying, "COPIES", (free_port(), free_port()))


@pytest.fixture
def linked(fake_cluster: Make, own_ports: None) -> FakeCluster:
    """Three nodes whose fabric is this machine's loopback, where no firewall is wanted."""
    names, more = ("spark1", "spark2", "spark3"), "trusted_network: true\n"
    cluster = fake_cluster(*names, more=more, network="127.0.1")
    for number, node in enumerate(cluster.nodes.values(), 11):
        node.fabric = f"127.0.0.{number}/8"
    cluster.marked("copies")
    return cluster


@pytest.fixture
def hub(tmp_path: Path, hub_allowed: None) -> Iterator[LabHub]:
    """A hub with a model of two files."""
    tensors = checkpoints.dense(SMALL, "fp8")
    checkpoints.write(tmp_path / "hub/org/small", SMALL, tensors, files=2)
    with serve(tmp_path / "hub") as served:
        yield served
