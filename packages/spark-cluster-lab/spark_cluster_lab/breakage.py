"""Breaking the lab's nodes on purpose, and undoing it: `lab break NAME`, `lab repair NAME`.

Every trouble that `doctor` knows and the lab can produce has a name here.
"""

from __future__ import annotations

import difflib

from spark_cluster.errors import UsageError
from spark_cluster_lab.breakages import link, serving, system
from spark_cluster_lab.breakages.model import Breakage
from spark_cluster_lab.lab import Lab
from spark_cluster_lab.node import LabNode

BREAKAGES: dict[str, Breakage] = {
    breakage.name: breakage for breakage in (*link.BREAKAGES, *system.BREAKAGES, *serving.BREAKAGES)
}


def find(name: str) -> Breakage:
    """The breakage of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in BREAKAGES:
        close = difflib.get_close_matches(name, BREAKAGES, n=3)
        every = "`spark-cluster lab break --list` shows all"
        hint = f"did you mean {' or '.join(close)}?" if close else every
        raise UsageError(f"no breakage is called {name}", hint=hint)
    return BREAKAGES[name]


def break_(lab: Lab, name: str, node: str | None = None) -> LabNode:
    """Break a node (the usual one when none is named); the node.

    Raises:
        UsageError: no such breakage, no such node.
        Failed: the node lacks what would be broken.
    """
    breakage = find(name)
    broken = lab.node(node or breakage.node)
    breakage.break_(broken)
    return broken


def repair(lab: Lab, name: str | None = None) -> list[str]:
    """Undo one breakage (or all) wherever it is in force: `NAME on NODE`."""
    chosen = [find(name)] if name is not None else list(BREAKAGES.values())
    return [
        f"{breakage.name} on {node.name}"
        for breakage in chosen
        for node in lab.nodes
        if breakage.repair(node)
    ]


def in_force(lab: Lab) -> dict[str, list[str]]:
    """Breakage to the nodes that are broken so now."""
    found = {b.name: [n.name for n in lab.nodes if b.is_in(n)] for b in BREAKAGES.values()}
    return {name: nodes for name, nodes in found.items() if nodes}
