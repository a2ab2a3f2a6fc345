"""The division of a cell's load among replicas.

Each of r replicas gets c/r of a cell's c requests at once, so that all servers carry the same load
from the first request of a run to its last one. Where r does not divide c the cell is left out: the
server with fewer requests would be idle while the others end, so the sum of the throughputs would
be that of no load in particular, and the latencies of two loads would be mixed. A cell at c is thus
comparable with one of a single server at c: the same requests at once, on the same nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Interface

from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.errors import Refused
from spark_cluster.topology import Node


def share(cell: PlannedCell, replicas: int) -> PlannedCell:
    """Return the part of a cell that one replica gets."""
    concurrency = cell.key.concurrency // replicas
    return replace(cell, key=cell.key.model_copy(update={"concurrency": concurrency}))


def meeting_address(nodes: Sequence[Node]) -> str:
    """Return an address of the first node that all others reach without a router: the link's.

    Without a link it is one of a network in which each node has an address of its own; those of
    Docker's bridges are the same on each node.

    Raises:
        Refused: there is none.
    """
    first, *others = nodes
    own = [a for i in first.facts.interfaces for a in i.addresses if not a.ip.is_loopback]
    linked = [link.address for link in first.links if link.address in own]
    for address in (*linked, *own):
        if all(_is_next_to(node, address) for node in others):
            return str(address.ip)
    names = ", ".join(node.name for node in others)
    raise Refused(
        f"{first.name} has no address in a network of {names}: the load generators of replicas "
        "have to reach each other",
        hint="`spark-cluster provision` configures the link between the nodes",
    )


def _is_next_to(node: Node, address: IPv4Interface) -> bool:
    known = {a.ip for i in node.facts.interfaces for a in i.addresses}
    return address.ip not in known and any(ip in address.network for ip in known)
