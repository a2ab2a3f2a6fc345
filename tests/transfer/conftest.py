"""Ports and nodes between which tests copy."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster, Make
from free_ports import free_port

from spark_cluster.transfer import copy as copying


@pytest.fixture
def own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders listen on ports that no other test has."""
    monkeypatch.setattr(copying, "COPIES", (free_port(), free_port()))


@pytest.fixture
def linked(fake_cluster: Make, own_ports: None) -> FakeCluster:
    """Three nodes whose fabric is this machine's loopback, where no firewall is wanted."""
    cluster = fake_cluster("spark1", "spark2", "spark3", more="trusted_network: true\n")
    for number, node in enumerate(cluster.nodes.values(), 11):
        node.fabric = f"127.0.0.{number}/8"
    return cluster
