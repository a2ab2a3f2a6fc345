"""Asks nodes, and the hub, what a plan wants to know: imported for a plan or a start only."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import Facts
from spark_cluster.engine.resolve import ServedModel
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.find import known_models
from spark_cluster.models.hub.lookup import Hub, cached, online
from spark_cluster.plan.planner import Planner, Subject
from spark_cluster.plan.room import NodeMemory, of_facts
from spark_cluster.plan.together import Placed
from spark_cluster.runner.play import Play

DONE = ".complete"
"""What the role `models` leaves in a model's folder when a download is whole."""


def survey(
    play: Play, folder: str, downloaded: Mapping[str, float] | None = None
) -> tuple[list[NodeMemory], list[Facts]]:
    """The nodes' rooms and facts, the head first: one question each, all at once.

    Args:
        folder: of a model that has one of its own on the nodes.
        there: GiB of the model that nodes have in the hub cache; infinite: all of it.
    """
    question = {
        **fact_gathering.MEMORY,
        "files": {"meminfo": "/proc/meminfo", "done": f"{folder}/{DONE}"},
    }
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    waiting = [(node, play.session(node).submit("gather", **question)) for node in nodes]
    rooms, facts = [], []
    for node, pending in waiting:
        answer = pending.wait()
        processes, _ = fact_gathering.memory(answer)
        begun = (downloaded or {}).get(node.name, 0.0)
        has_model = answer["files"]["done"] is not None or math.isinf(begun)
        room = of_facts(node.name, node.facts, processes or (), has_model=has_model)
        if room.disk_free_gib is not None and not has_model:
            room = replace(room, disk_free_gib=room.disk_free_gib + begun)
        rooms.append(room)
        facts.append(node.facts)
    return rooms, facts


LIMIT_S = 30.0
"""Seconds that `up` waits for the hub; a plan is worth no more of its time."""


def hub_for(play: Play, subject: Subject, *, offline: bool = False) -> Hub:
    """Return where a plan finds its model: what is kept of it, else the hub, asked here.

    Nothing fails for it: without an answer in time there is a note, and what is kept is used.
    HF_HUB_OFFLINE or `offline` forbids asking.
    """
    kept = cached()
    if offline:
        return kept
    with contextlib.suppress(UsageError, InvalidFile):
        Planner(play.project, kept).geometry(subject)
        return kept
    asked = online(tuple(known_models()))

    def look_up() -> None:
        with contextlib.suppress(UsageError, InvalidFile):
            Planner(play.project, asked).geometry(subject)

    asking = threading.Thread(target=look_up, daemon=True, name="hub")
    asking.start()
    asking.join(LIMIT_S)
    if asking.is_alive():
        play.note(
            f"the hub has not described {subject.launch.model} within {LIMIT_S:g} s: planned "
            "without it"
        )
        return kept
    return asked


def placed(
    play: Play, models: Sequence[ServedModel], downloaded: Sequence[Mapping[str, float]]
) -> list[Placed]:
    """Ask the nodes for their memory, and return each model on its own.

    Args:
        there: for each of them, GiB that nodes have in the hub cache; infinite: all of it.

    Raises:
        Refused: a node is not among the chosen ones.
    """
    found = []
    for model, begun in zip(models, downloaded, strict=True):
        rooms, facts = survey(play, model.subject.node_path, begun)
        model.node_of({node.name: node for node in play.nodes})
        known = {room.name: (room, fact) for room, fact in zip(rooms, facts, strict=True)}
        found.append(Placed(model.subject, *known[model.node], model.on_request))
    return found
