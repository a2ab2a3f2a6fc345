"""Ask what is true of the nodes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.topology import Node


@dataclass(frozen=True)
class FactsResult:
    """The nodes with their facts and links, in the inventory's order."""

    nodes: tuple[Node, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `facts --json` prints it."""
        return {"nodes": [_document(node) for node in self.nodes]}


def facts(opened: Opened) -> FactsResult:
    """Ask every selected node for its facts.

    Raises:
        SparkClusterError: that of the first node that does not answer.
    """
    from spark_cluster.runner.options import Options

    with opened.play("facts", opened.nodes, Options(), change=False) as run:
        nodes = run.open().nodes
    return FactsResult(tuple(nodes))


def _document(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "address": node.address,
        "links": [dataclasses.asdict(link) for link in node.links],
        **dataclasses.asdict(node.facts),
    }
