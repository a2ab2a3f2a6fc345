"""Asks nodes what a plan wants to know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.facts import gather
from spark_cluster.facts.model import Facts
from spark_cluster.planning.room import NodeMemory, of_facts

if TYPE_CHECKING:
    from spark_cluster.runner.play import Play

DONE = ".complete"
"""What the role `models` leaves in a model's folder when a download is whole."""


def survey(play: Play, folder: str) -> tuple[list[NodeMemory], list[Facts]]:
    """The nodes' rooms and facts, the head first: one question each, all at once.

    Args:
        folder: of the model on the nodes.
    """
    question = {
        **gather.MEMORY,
        "files": {"meminfo": "/proc/meminfo", "done": f"{folder}/{DONE}"},
    }
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    waiting = [(node, play.session(node).submit("gather", **question)) for node in nodes]
    rooms, facts = [], []
    for node, pending in waiting:
        answer = pending.wait()
        processes, _ = gather.memory(answer)
        has_model = answer["files"]["done"] is not None
        rooms.append(of_facts(node.name, node.facts, processes or (), has_model=has_model))
        facts.append(node.facts)
    return rooms, facts
