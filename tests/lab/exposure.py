"""Ports of the nodes that a machine next to them reaches: every port of every address."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spark_cluster.config.fact_gathering import LISTENERS
from spark_cluster.doctor.probes import parse_listeners
from spark_cluster_lab import LabNode
from spark_cluster_lab.layout import FABRIC, MANAGEMENT
from spark_cluster_lab.neighbour import PORT, Neighbour, neighbour

OWN = {"sshd", "systemd-resolve"}
"""Programs of the system itself that may answer anyone."""


@dataclass(frozen=True)
class Exposure:
    """The neighbour, and the nodes that it tries."""

    neighbour: Neighbour
    nodes: Sequence[LabNode]
    addresses: Mapping[str, LabNode]

    def open(self, *nodes: LabNode) -> set[tuple[str, str, int]]:
        """(node, program, port) of all that answers, but what the system itself has.

        Args:
            nodes: only these; all of them otherwise.
        """
        tried = nodes or self.nodes
        names = {node.name for node in tried}
        addresses = {at: node for at, node in self.addresses.items() if node.name in names}
        found = self.neighbour.open_ports(*addresses)
        programs = {node.name: listeners(node) for node in tried}
        answers = {
            (node.name, programs[node.name].get(port, "?"), port)
            for address, node in addresses.items()
            for port in found[address]
        }
        for node in tried:  # or the scan saw nothing at all
            assert (node.name, "sshd", 22) in answers
        return {row for row in answers if row[1] not in OWN}


@contextmanager
def exposure(*nodes: LabNode) -> Iterator[Exposure]:
    """A neighbour that knows every address of these nodes, and by which of them to get there."""
    addresses: dict[str, LabNode] = {}
    routes: dict[str, str] = {}
    for node in nodes:
        told = json.loads(node.run(["ip", "-j", "addr"]).stdout)
        for interface in told:
            for info in interface["addr_info"]:
                local, name = info["local"], interface["ifname"]
                if name == MANAGEMENT:
                    v6 = info["family"] == "inet6"
                    addresses[f"{local}%{PORT}" if v6 else local] = node
                elif name in FABRIC and info["family"] == "inet":
                    addresses[local] = node
                    routes[local] = node.address
    assert len(routes) == 2 * len(nodes), "the fabric has its addresses"
    with neighbour(routes) as other:
        yield Exposure(other, nodes, addresses)


def only_the_endpoint(*nodes: LabNode) -> None:
    """Assert that nothing but the head's proxy answers a neighbour."""
    with exposure(*nodes) as seen:
        assert seen.open() == {("spark1", "haproxy", 8000)}


def listeners(node: LabNode) -> dict[int, str]:
    """Port to the program that listens there, but on the loopback."""
    return parse_listeners(node.run(list(LISTENERS)).stdout)
