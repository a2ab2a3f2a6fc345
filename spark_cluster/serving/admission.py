"""Before anything is fetched: can it work at all; and before the start: which share of the memory.

What is certain from the plan is refused with its reason, while refusing is cheap.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

from spark_cluster.cluster import Spark
from spark_cluster.engine.play import Play
from spark_cluster.errors import Refused, UsageError
from spark_cluster.planning.memory import LOWEST, utilization
from spark_cluster.planning.room import Room
from spark_cluster.recipe import Recipe
from spark_cluster.resources import Container
from spark_cluster.serving import vram
from spark_cluster.serving.engine import RAY, SERVER
from spark_cluster.serving.readiness import ContainerState

FLAG = "--gpu-memory-utilization"


def serves(running: ContainerState, recipe: Recipe, tp: int) -> bool:
    """Whether what runs is this recipe at this size already."""
    wanted = {"spark-cluster.recipe": recipe.name, "spark-cluster.tp": str(tp)}
    return running.status == "running" and wanted.items() <= running.labels.items()


def must_work(
    play: Play, recipe: Recipe, nodes: list[Spark], running: ContainerState, *, force: bool
) -> None:
    """Refuse what the plan says cannot work, unless forced; what serves already, does.

    Raises:
        Refused: with the first reason, and the nearest configuration that would work.
    """
    tp = len(nodes)
    if serves(running, recipe, tp):
        return
    # Late: formulas, rules and catalogue are read for a start only, not for looking that all is up.
    from spark_cluster.planning import planner
    from spark_cluster.planning.survey import survey

    subject = planner.of_a_recipe(recipe, tp)
    rooms, facts = survey(play, recipe.model.node_path)
    if running.status == "running":
        ours = _our_processes(play, [room.name for room in rooms])
        rooms = [_without_ours(room, ours[room.name]) for room in rooms]
        facts = [replace(told, memory=room.memory) for told, room in zip(facts, rooms, strict=True)]
    try:
        plan = planner.Planner(play.project).plan(subject, rooms, planner.Question(), facts)
    except UsageError as error:
        play.note(f"not planned: {error.message}")
        return
    if plan.goes:
        return
    errors = [f"{i.title} ({i.found}); {i.fix}" for i in plan.issues if i.severity == "error"]
    reason, *others = [*plan.reasons, *errors]
    if force:
        play.note(f"--force: {'; '.join([reason, *others])}", warning=True)
        return
    would = [f"{near.change} would work ({near.why})" for near in plan.nearest]
    more = [f"`spark-cluster plan {recipe.name} --tp {tp}` shows all", "--force goes on"]
    raise Refused(reason, hint="; ".join([*would[:2], *more]))


def share(play: Play, recipe: Recipe, nodes: list[Spark], running: ContainerState) -> float | None:
    """The --gpu-memory-utilization for all ranks, from the node with the least room.

    None when the recipe says it, or how large the KV cache is. A server that serves the same keeps
    its share: the memory that it holds itself is no reason to start it anew. One that serves
    something else is ended first, or it would hold what is counted.

    Raises:
        Refused: there is too little for anything.
    """
    same = serves(running, recipe, len(nodes))
    if running.status == "running" and not same and not play.check:
        _release(play)
    if recipe.gpu_memory_utilization is not None or "kv-cache-memory-bytes" in recipe.engine_args:
        return None
    kept = _share_of(running) if same else None
    if kept is not None:
        return kept
    if not play.check:  # page cache is not free memory to CUDA
        play.on_each(nodes, partial(_drop_caches, play))
        play.refresh(nodes)
    known = {node.name: node for node in play.nodes}
    now = [known[node.name] for node in nodes]
    name, highest = min(
        ((node.name, utilization(node.facts.memory)) for node in now), key=lambda item: item[1]
    )
    if highest < LOWEST:
        memory = known[name].facts.memory
        raise Refused(
            f"only {memory.available_kib / 2**20:.1f} of {memory.total_kib / 2**20:.1f} GiB are "
            "available",
            where=name,
            hint="spark-cluster vram shows who holds it; spark-cluster down ends what we started",
        )
    return _planned(play, recipe, now, highest)


def _share_of(running: ContainerState) -> float | None:
    """The share that a server was started with, where its command line says one."""
    for flag, value in zip(running.command, running.command[1:], strict=False):
        if flag == FLAG:
            with contextlib.suppress(ValueError):
                return float(value)
    return None


def _planned(play: Play, recipe: Recipe, nodes: list[Spark], highest: float) -> float:
    """The share that the plan chooses: what is asked for, or all that is safe."""
    from spark_cluster.planning import planner

    subject = planner.of_a_recipe(recipe, len(nodes))
    rooms = [Room(node.name, node.facts.memory) for node in nodes]
    try:
        fitted = planner.Planner(play.project).fit(subject, rooms)
    except UsageError:  # a shape that nobody knows
        return highest
    return highest if fitted.share is None else min(fitted.share, highest)


def _release(play: Play) -> None:
    """End what serves something else, on every node, and have its memory back."""
    play.apply(play.nodes, [Container(SERVER, state="absent", stop_timeout_s=30)])
    play.apply(play.nodes, [Container(RAY, state="absent", stop_timeout_s=2)])
    vram.until_free({node.name: play.session(node) for node in play.nodes})


def _our_processes(play: Play, names: list[str]) -> dict[str, set[int]]:
    """Node to the process ids (of the host) in our containers; one question a node, all at once."""
    commands = {name: ["docker", "top", name, "-eo", "pid"] for name in (SERVER, RAY)}
    waiting = {
        node.name: play.session(node).submit("gather", commands=commands)
        for node in play.nodes
        if node.name in names
    }
    found = {}
    for name, pending in waiting.items():
        told = [done["stdout"] for done in pending.wait()["commands"].values() if done is not None]
        found[name] = {int(word) for text in told for word in text.split() if word.isdecimal()}
    return found


def _without_ours(room: Room, ours: set[int]) -> Room:
    """A node as it will be when what we serve on it now has been ended; others' processes stay."""
    held = sum(process.used_mib or 0 for process in room.held if process.pid in ours)
    memory = room.memory
    back = min(memory.available_kib + held * 1024, memory.total_kib)
    left = tuple(process for process in room.held if process.pid not in ours)
    return replace(room, memory=replace(memory, available_kib=back), held=left)


def _drop_caches(play: Play, node: Spark) -> None:
    """Give the page cache back, as vLLM's start gate does not count it as free."""
    play.session(node).run(["sync"], timeout=300)
    play.session(node).run(["sysctl", "-q", "-w", "vm.drop_caches=3"], timeout=300)
