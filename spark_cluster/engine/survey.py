"""Plans of what is to be started, with what the nodes and the hub say.

Imported for a plan or a start only, not for looking that all is up: it reads formulas and rules.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import Facts
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.names import PROGRAMS
from spark_cluster.engine.resolve import ServedModel
from spark_cluster.errors import DoesNotFit, InvalidFile, UsageError
from spark_cluster.models.lookup import Hub, cached, known_models, online
from spark_cluster.node.containers import ContainerState
from spark_cluster.plan.plan import Feasibility
from spark_cluster.plan.planner import Placed, Planner, PlanTogether, Subject, plan_together
from spark_cluster.plan.room import NodeMemory, of_facts
from spark_cluster.plan.serving import NotDivisible
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import ask_all

DONE, PARTIAL = ".complete", "partial "
"""What the role `models` notes in a model's folder, and how the note begins until all is there."""

TRANSFORMERS = "/lib/python3*/site-packages/transformers-*.dist-info/INSTALLER"
"""What pip writes next to a package, in an environment; the folder names the version."""


def survey(
    play: Play, folder: str, downloaded: Mapping[str, float] | None = None, venv: str = ""
) -> tuple[list[NodeMemory], list[Facts]]:
    """The nodes' rooms and facts, the head first: one question each, all at once.

    Args:
        folder: of a model that has one of its own on the nodes.
        downloaded: GiB of the model that nodes have in the hub cache; infinite: all of it.
        venv: the environment that would serve; the facts' packages then name its transformers.
    """
    question = {
        **fact_gathering.MEMORY,
        "files": {"meminfo": "/proc/meminfo", "done": f"{folder}/{DONE}"},
        "trees": {"transformers": f"{venv}{TRANSFORMERS}"} if venv else {},
    }
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    answers = ask_all(play.sessions, "gather", **question)
    rooms, facts = [], []
    for node in nodes:
        answer = answers[node.name]
        processes, _ = fact_gathering.memory(answer)
        begun = (downloaded or {}).get(node.name, 0.0)
        done = answer["files"]["done"]
        is_whole = done is not None and not done.startswith(PARTIAL)
        has_model = is_whole or math.isinf(begun)
        room = of_facts(node.name, node.facts, processes or (), has_model=has_model)
        if room.disk_free_gib is not None and not has_model:
            room = replace(room, disk_free_gib=room.disk_free_gib + begun)
        rooms.append(room)
        facts.append(replace(node.facts, packages={**node.facts.packages, **_transformers(answer)}))
    return rooms, facts


def _transformers(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of transformers by its name; empty where it was not asked or found."""
    folders = [path.split("/")[-2] for path in answer["trees"].get("transformers", ())]
    versions = [name.removesuffix(".dist-info").rpartition("-")[2] for name in folders]
    return {"transformers": versions[0]} if versions else {}


LIMIT_S = 30.0
"""Seconds that `up` waits for the hub; a plan is worth no more of its time."""


def hub_for(play: Play, subject: Subject) -> Hub:
    """Return where a plan finds its model: what is kept of it, else the hub, asked here.

    Nothing fails for it: without an answer in time there is a note, and what is kept is used.
    HF_HUB_OFFLINE or --offline forbids asking.
    """
    kept = cached()
    if play.options.offline:
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
        downloaded: for each of them, GiB that nodes have in the hub cache; infinite: all of it.

    Raises:
        Refused: a node is not among the chosen ones.
    """
    found, nodes = [], {node.name: node for node in play.nodes}
    for model, begun in zip(models, downloaded, strict=True):
        subject = model.subject
        rooms, facts = survey(play, subject.node_path, begun, subject.launch.venv)
        at = [room.name for room in rooms].index(model.node_of(nodes).name)
        found.append(Placed(subject, rooms[at], facts[at], model.on_request))
    return found


def feasibility(
    play: Play,
    server: Server,
    running: ContainerState,
    downloaded: Mapping[str, float],
    ended: Sequence[str],
) -> Feasibility | None:
    """Plan a server with the memory that its nodes will have when what is ended has ended.

    Args:
        running: its program now, which a start ends, too.

    Returns:
        None, with a note, where no plan can be made.

    Raises:
        DoesNotFit: the model cannot be divided over these nodes, unless forced.
    """
    rooms, facts = survey(play, server.model_path, downloaded, server.launch.venv)
    if running.status == "running" or ended:
        ours = _ended_processes(play, ended)
        rooms = [without_ours(room, ours[room.name]) for room in rooms]
        facts = [f.with_gpu_memory(room.memory) for f, room in zip(facts, rooms, strict=True)]
    try:
        hub = hub_for(play, server.subject)
        return Planner(play.project, hub).feasibility(server.subject, rooms, facts)
    except (UsageError, InvalidFile) as error:
        if isinstance(error, NotDivisible) and not play.options.force:
            raise DoesNotFit(error.message, hint=f"{error.hint}; --force launches anyway") from None
        play.note(f"not planned: {error.message}")
        return None


def plan_models(
    play: Play,
    models: Sequence[ServedModel],
    downloaded: Sequence[Mapping[str, float]],
    ended: Sequence[str],
) -> PlanTogether:
    """Plan models next to each other, with the memory that their nodes will have; see `placed`.

    Raises:
        UsageError, InvalidFile: the shape of a model is not known.
    """
    ours, found = _ended_processes(play, ended), []
    for one in placed(play, models, downloaded):
        room = without_ours(one.room, ours[one.room.name])
        facts = one.facts and one.facts.with_gpu_memory(room.memory)
        found.append(replace(one, room=room, facts=facts))
        hub_for(play, one.subject)  # what it says is kept on this machine
    return plan_together(Planner(play.project), found)


def _ended_processes(play: Play, ended: Sequence[str]) -> dict[str, set[int]]:
    """Return by node the processes of our own that have ended before the start."""
    return runtime.our_processes(play, [node.name for node in play.nodes], (*PROGRAMS, *ended))


def without_ours(room: NodeMemory, ours: set[int]) -> NodeMemory:
    """A node as it will be when what we serve on it now has been ended; others' processes stay."""
    held = sum(process.used_mib or 0 for process in room.held if process.pid in ours)
    memory = room.memory
    back = min(memory.available_kib + held * 1024, memory.total_kib)
    left = tuple(process for process in room.held if process.pid not in ours)
    return replace(room, memory=replace(memory, available_kib=back), held=left)
