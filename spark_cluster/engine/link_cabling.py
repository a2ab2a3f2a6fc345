"""Where the ports of three and more nodes lead: to a switch, or from node to node in a ring.

Two ports with a carrier are two cables to the other one of two Sparks. Of three they can be a ring,
which looks the same on each node; a frame that every port sends shows who is at the other end.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.topology import Node, port_of

if TYPE_CHECKING:
    from spark_cluster.runner.session import Session

SWITCHED = 3
"""Nodes from which on a switch joins them; two have a cable."""

ISSUE = "link-without-switch"

LISTEN_S = 1.2
LIMIT_S = 20.0
"""Longest wait for one node's answer, seconds."""

LISTENER = "spark_cluster.node.probes.neighbours"


@dataclass(frozen=True)
class Cabling:
    """The other nodes that each port of a node reaches.

    Attributes:
        ports: port (`np0`) to the names of the nodes, sorted; ports that reach none are left out.
    """

    node: str
    ports: Mapping[str, tuple[str, ...]]

    @property
    def split(self) -> bool:
        """True if the ports lead to different nodes, so that no one port reaches them all."""
        ends = [set(names) for names in self.ports.values()]
        return len(ends) > 1 and not set.intersection(*ends)

    def __str__(self) -> str:
        ways = (f"{port} to {', '.join(names)}" for port, names in sorted(self.ports.items()))
        return f"{self.node}: {'; '.join(ways)}"


def in_doubt(nodes: Sequence[Node]) -> bool:
    """Return whether the facts leave it open: of three or more nodes one has two ports up."""
    return len(nodes) >= SWITCHED and any(len(_ports(node)) > 1 for node in nodes)


def look(nodes: Sequence[Node], sessions: Mapping[str, Session]) -> list[Cabling]:
    """Have every node send frames over its ports, and say which it has got, all at once.

    Args:
        nodes: those that are to reach each other, of which `in_doubt` holds.

    Raises:
        Failed: a node cannot do it.
    """
    token = secrets.token_hex(8)
    asked = {}
    for node in nodes:
        names = [name for one in _ports(node).values() for name in one]
        words = [token, node.name, f"{LISTEN_S:g}", *names]
        asked[node.name] = sessions[node.name].submit(
            "run", program=LISTENER, argv=words, timeout=LIMIT_S
        )
    return [_read(name, pending.wait(), nodes) for name, pending in asked.items()]


def _read(node: str, reply: Mapping[str, object], nodes: Sequence[Node]) -> Cabling:
    """Return what a node's listener has printed, which is foreign input."""
    known = {one.name for one in nodes} - {node}
    ports: dict[str, set[str]] = {}
    try:
        for interface, other in json.loads(str(reply["stdout"])):
            if other in known:
                ports.setdefault(port_of(str(interface)), set()).add(other)
    except (ValueError, TypeError, LookupError, RecursionError):
        lines = str(reply.get("stderr", "")).strip().splitlines()
        raise Failed(
            f"cannot find out where its ports lead: {lines[-1] if lines else 'no answer'}",
            where=node,
            hint="spark-cluster doctor --only link checks each port by itself",
        ) from None
    return Cabling(node, {port: tuple(sorted(names)) for port, names in ports.items()})


def without_switch(found: Iterable[Cabling]) -> list[Cabling]:
    """Return the nodes whose ports lead to different nodes."""
    return [cabling for cabling in found if cabling.split]


def must_be_switched(nodes: Sequence[Node], session: Callable[[Node], Session]) -> None:
    """Refuse nodes that are cabled from one to the next; asks them only where that can be.

    Args:
        session: the agent of a node.

    Raises:
        Failed: they are, or a node cannot say.
    """
    if not in_doubt(nodes):
        return
    found = look(nodes, {node.name: session(node) for node in nodes})
    if split := without_switch(found):
        raise refusal(split)


def refusal(split: Sequence[Cabling]) -> SparkClusterError:
    """Return the error for nodes whose ports lead to different nodes."""
    from spark_cluster.known_issues.entries import catalogue  # slow to import, seldom needed

    issue = catalogue()[ISSUE]
    places = ". ".join(str(cabling) for cabling in split)
    return Failed(
        f"{issue.title}: the ports of a node lead to different nodes ({places})",
        hint=f"{issue.cause}: {issue.fix}",
    )


def _ports(node: Node) -> dict[str, list[str]]:
    """Return the interfaces that are up, by their port."""
    found: dict[str, list[str]] = {}
    for hca in node.facts.hcas:
        if hca.up:
            found.setdefault(port_of(hca.interface), []).append(hca.interface)
    return found
