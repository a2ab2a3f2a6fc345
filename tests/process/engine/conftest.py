"""A server that a node asks, ports and nodes between which tests copy, and a hub."""

from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints
import pytest
from chat_server import ChatServer
from checkpoints import SMALL
from free_ports import free_port
from piped_cluster import Make, PipedCluster

from spark_cluster.engine import node_copies
from spark_cluster_lab.hub import LabHub, serve


@pytest.fixture
def server(one_node: PipedCluster) -> Iterator[ChatServer]:
    """A server that answers as a chat model does, and is asked from a node."""
    made = ChatServer(session=one_node.play.session(one_node.play.head))
    yield made
    made.close()


@pytest.fixture
def own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders listen on ports that no other test has."""
    monkeypatch.setattr(node_copies, "COPIES", (free_port(), free_port()))


@pytest.fixture
def linked_with(piped_cluster: Make, own_ports: None) -> Callable[..., PipedCluster]:
    """`linked_with(more)`: three nodes whose fabric, if they have one, is this machine's loopback,
    as is their management network.

    Args:
        more: lines of the inventory.
    """

    def make(more: str = "", *, fabric: bool = True) -> PipedCluster:
        cluster = piped_cluster("spark1", "spark2", "spark3", more=more, network="127.0.1")
        for number, node in enumerate(cluster.nodes.values(), 11):
            node.fabric = f"127.0.0.{number}/8" if fabric else ""
            (node.root / "hub").mkdir()
        cluster.marked("copies", "firewall")
        return cluster

    return make


@pytest.fixture
def linked(linked_with: Callable[..., PipedCluster]) -> PipedCluster:
    """Three nodes where no firewall is wanted."""
    return linked_with("trusted_network: true\n")


@pytest.fixture
def hub(tmp_path: Path, hub_allowed: None) -> Iterator[LabHub]:
    """A hub with a model of two files."""
    tensors = checkpoints.dense(SMALL, "fp8")
    checkpoints.write(tmp_path / "hub/org/small", SMALL, tensors, files=2)
    with serve(tmp_path / "hub") as served:
        yield served
