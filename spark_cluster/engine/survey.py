"""Asks nodes what a plan wants to know of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cluster.facts import gather
from spark_cluster.facts.model import Facts
from spark_cluster.planning.room import NodeMemory, of_facts

if TYPE_CHECKING:
    from spark_cluster.runner.play import Play

DONE = ".complete"
"""What the role `models` leaves in a model's folder when a download is whole."""


def survey(
    play: Play, folder: str, there: Mapping[str, float] | None = None
) -> tuple[list[NodeMemory], list[Facts]]:
    """The nodes' rooms and facts, the head first: one question each, all at once.

    Args:
        folder: of a model that has one of its own on the nodes.
        there: GiB of the model that nodes have in the hub cache; infinite: all of it.
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
        begun = (there or {}).get(node.name, 0.0)
        has_model = answer["files"]["done"] is not None or math.isinf(begun)
        room = of_facts(node.name, node.facts, processes or (), has_model=has_model)
        if room.disk_free_gib is not None and not has_model:
            room = replace(room, disk_free_gib=room.disk_free_gib + begun)
        rooms.append(room)
        facts.append(node.facts)
    return rooms, facts
