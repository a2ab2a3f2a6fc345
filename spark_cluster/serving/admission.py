"""Before anything is fetched: can it work at all; and before the start: which share of the memory.

What is certain from the plan is refused with its reason, while refusing is cheap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_cluster.config import overrides
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import DoesNotFit, InvalidFile, Refused, UsageError
from spark_cluster.inference import runtime
from spark_cluster.inference.process import PROGRAMS, RAY, SERVER
from spark_cluster.models.memory import LOWEST, utilization
from spark_cluster.node.containers import OVERRIDES, ContainerState
from spark_cluster.planning.room import NodeMemory, of_facts
from spark_cluster.runner.play import Play
from spark_cluster.serving import load_guard, vram
from spark_cluster.serving.plan import ServePlan
from spark_cluster.topology import Node


def serves(running: ContainerState, plan: ServePlan) -> bool:
    """Return whether this recipe runs already at this size."""
    return running.status == "running" and was_made_for(running, plan)


def was_made_for(running: ContainerState, plan: ServePlan) -> bool:
    """Return whether a server, running or not, was made for this recipe at this size."""
    labels = plan.deployment.labels
    wanted = {name: labels[name] for name in ("spark-cluster.recipe", "spark-cluster.tp")}
    if running.runtime != plan.deployment.runtime:
        return False
    if running.labels.get(OVERRIDES, "") != labels.get(OVERRIDES, ""):
        return False
    return wanted.items() <= running.labels.items()


def overrides_changed(running: ContainerState, plan: ServePlan) -> str:
    """Return in words how the engine arguments differ from those of the recipe that runs."""
    labels = plan.deployment.labels
    had, now = running.labels.get(OVERRIDES, ""), labels.get(OVERRIDES, "")
    same = running.labels.get("spark-cluster.recipe") == labels["spark-cluster.recipe"]
    if running.status != "running" or not same or had == now:
        return ""
    return (
        f"the server runs with {had or 'the recipe as it is'}, and now "
        f"{now or 'the recipe as it is'} is asked for: it is started again"
    )


def must_work(
    play: Play,
    plan: ServePlan,
    running: ContainerState,
    there: Mapping[str, float],
    *,
    force: bool,
    offline: bool = False,
    ended: Sequence[str] = (),
) -> None:
    """Refuse what the plan says cannot work, unless forced; what serves already, does.

    Args:
        there: GiB of the model that nodes have in the hub cache; infinite: all of it.
        offline: the hub is not asked for the model's shape.
        ended: further programs of ours that give their memory back before the start.

    Raises:
        DoesNotFit: with the first reason, and the nearest configuration that would work.
        Refused: the recipe lacks what its source needed.
    """
    if serves(running, plan):
        return
    must_be_whole(plan.recipe, force=force)
    # Late: formulas, rules and catalogue are read for a start only, not for looking that all is up.
    from spark_cluster.planning import planner
    from spark_cluster.serving import model_lookup
    from spark_cluster.serving.survey import survey

    rooms, facts = survey(play, plan.deployment.model_path, there)
    if running.status == "running" or ended:
        ours = our_processes(play, [room.name for room in rooms], (*PROGRAMS, *ended))
        rooms = [without_ours(room, ours[room.name]) for room in rooms]
        facts = [f.with_gpu_memory(room.memory) for f, room in zip(facts, rooms, strict=True)]
    try:
        hub = model_lookup.hub_for(play, plan.subject, offline=offline)
        found = planner.Planner(play.project, hub).feasibility(plan.subject, rooms, facts)
    except (UsageError, InvalidFile) as error:
        play.note(f"not planned: {error.message}")
        return
    vram.record_plan(play.bus, plan.nodes, found.fit.peak_gib, found.fit.reserved_gib)
    if found.feasible:
        return
    errors = [f"{i.title} ({i.found}); {i.fix}" for i in found.issues if i.severity == "error"]
    reason, *others = [*found.reasons, *found.obstacles, *errors]
    if force:
        play.note(f"--force: {'; '.join([reason, *others])}", warning=True)
        return
    would = [f"{near.change} would work ({near.why})" for near in found.nearest]
    more = [
        f"`spark-cluster plan {_named(plan)}` shows all",
        "--force launches anyway",
    ]
    raise DoesNotFit(reason, hint="; ".join([*would[:2], *more]))


def _named(plan: ServePlan) -> str:
    """The arguments of `plan` for the same."""
    words = [plan.recipe.name, "--tp", str(plan.tp), overrides.text(plan.recipe.overrides)]
    return " ".join(filter(None, words))


def must_be_whole(recipe: Recipe, *, force: bool) -> None:
    """Refuse an imported recipe that lacks what its source needed, unless forced.

    Raises:
        Refused: with all of it.
    """
    lacking = [entry for entry in recipe.not_carried_over if entry.blocks]
    if lacking and not force:
        raise Refused(
            f"recipe {recipe.name} cannot work as it was imported: "
            + "; ".join(str(entry) for entry in lacking),
            hint="add what is missing and remove the entry from not_carried_over; --force "
            "launches as it is",
        )


def share(play: Play, plan: ServePlan, running: ContainerState) -> float | None:
    """The --gpu-memory-utilization for all ranks, from the node with the least room.

    None when the recipe says it, or how large the KV cache is. A server that serves the same keeps
    its share: the memory that it holds itself is no reason to start it again. One that serves
    something else is ended first, or it would hold what is counted. Where something is started, the
    nodes' memory is prepared for it.

    Raises:
        Refused: there is too little for anything.
    """
    same = serves(running, plan)
    elsewhere = running.status != "absent" and running.runtime != plan.deployment.runtime
    if (elsewhere or (running.status == "running" and not same)) and not play.check:
        _release(play)
    if not same and not play.check:
        load_guard.prepare(play, plan.nodes)
    if not plan.chooses_share:
        return None
    kept = kept_share(running, plan)
    if kept is not None:
        return kept
    if not play.check:
        play.refresh(plan.nodes)
    known = {node.name: node for node in play.nodes}
    now = [known[node.name] for node in plan.nodes]
    name, highest = min(
        ((node.name, utilization(node.facts.gpu_memory)) for node in now), key=lambda item: item[1]
    )
    if highest < LOWEST:
        memory = known[name].facts.gpu_memory
        raise Refused(
            f"only {memory.available_kib / 2**20:.1f} of {memory.total_kib / 2**20:.1f} GiB are "
            "available",
            where=name,
            hint="spark-cluster vram shows who holds it; spark-cluster down stops the server",
        )
    return _planned(play, plan, now, highest)


def kept_share(running: ContainerState, plan: ServePlan) -> float | None:
    """The share of a server that serves the same already, where its command line says one."""
    return share_of(running, plan) if serves(running, plan) else None


def share_of(running: ContainerState, plan: ServePlan) -> float | None:
    """The share that a server was made with, where its command line says one."""
    wanted = f"--{plan.share_flag}"
    for flag, value in zip(running.command, running.command[1:], strict=False):
        if flag == wanted:
            with contextlib.suppress(ValueError):
                return float(value)
    return None


def _planned(play: Play, plan: ServePlan, nodes: list[Node], highest: float) -> float:
    """The share that the plan chooses: what is asked for, or all that is safe."""
    from spark_cluster.planning import planner

    rooms = [of_facts(node.name, node.facts, (), has_model=True) for node in nodes]
    try:
        fitted = planner.Planner(play.project).fit(plan.subject, rooms)
    except (UsageError, InvalidFile):  # a shape that no one knows
        return highest
    return highest if fitted.share is None else min(fitted.share, highest)


def _release(play: Play) -> None:
    """End what serves something else, on every node, and have its memory back."""
    play.apply(play.nodes, runtime.absent(SERVER, stop_timeout_s=30))
    play.apply(play.nodes, runtime.absent(RAY, stop_timeout_s=2))
    vram.until_free(play.sessions)


def our_processes(
    play: Play, names: Sequence[str], programs: Sequence[str] = PROGRAMS
) -> dict[str, set[int]]:
    """Node to the process ids (of the host) in our programs; one question a node, all at once."""
    commands = {name: runtime.processes(name) for name in programs}
    waiting = {
        node.name: play.session(node).submit("gather", commands=commands)
        for node in play.nodes
        if node.name in names
    }
    found = {}
    for name, pending in waiting.items():
        outputs = [
            done["stdout"] for done in pending.wait()["commands"].values() if done is not None
        ]
        found[name] = {int(word) for text in outputs for word in text.split() if word.isdecimal()}
    return found


def without_ours(room: NodeMemory, ours: set[int]) -> NodeMemory:
    """A node as it will be when what we serve on it now has been ended; others' processes stay."""
    held = sum(process.used_mib or 0 for process in room.held if process.pid in ours)
    memory = room.memory
    back = min(memory.available_kib + held * 1024, memory.total_kib)
    left = tuple(process for process in room.held if process.pid not in ours)
    return replace(room, memory=replace(memory, available_kib=back), held=left)
