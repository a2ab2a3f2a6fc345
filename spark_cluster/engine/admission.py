"""Before anything is fetched: can it work at all, and with which share of each node's memory.

What is certain from the plan is refused with its reason, while refusing is cheap. What the plan
gives a server is handed on to its start, where the memory of then is the upper limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_cluster.config.launch import options_text
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import readiness, runtime, vram
from spark_cluster.engine.deployment import Key, Server
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.readiness import Member
from spark_cluster.engine.resolve import ServedModel
from spark_cluster.errors import DoesNotFit, InvalidFile, Refused, SparkClusterError, UsageError
from spark_cluster.models.memory_share import LOWEST, RESERVE_GIB, utilization
from spark_cluster.node.containers import NEEDS, OVERRIDES, RECIPE, TP, ContainerState
from spark_cluster.runner.play import Play

if TYPE_CHECKING:
    from spark_cluster.plan.plan import Feasibility
    from spark_cluster.plan.planner import PlanTogether


def serves(running: ContainerState, server: Server) -> bool:
    """Return whether this recipe runs already at this size."""
    return running.status == "running" and was_made_for(running, server)


def was_made_for(running: ContainerState, server: Server) -> bool:
    """Return whether a server, running or not, was made for this recipe at this size."""
    named = (RECIPE, TP, OVERRIDES)
    same = all(running.label(name) == server.labels.get(name, "") for name in named)
    return same and running.runtime == server.recipe.runtime


def overrides_changed(running: ContainerState, server: Server) -> str:
    """Return in words how the engine arguments differ from those of the recipe that runs."""
    labels = server.labels
    had, now = running.labels.get(OVERRIDES, ""), labels.get(OVERRIDES, "")
    same = running.label(RECIPE) == labels[RECIPE]
    if running.status != "running" or not same or had == now:
        return ""
    return (
        f"the server runs with {had or 'the recipe as it is'}, and now "
        f"{now or 'the recipe as it is'} is asked for: it is started again"
    )


@dataclass(frozen=True)
class Admitted:
    """What the plan gives each server, by its key.

    Attributes:
        shares: its --gpu-memory-utilization; None where the recipe says it, or how large the KV
            cache is, or where no plan can be made.
        needs_gib: what must be available before it is loaded, of those that are on request.
        new: those that are started, or made.
    """

    shares: Mapping[Key, float | None]
    needs_gib: Mapping[Key, float] = field(default_factory=dict)
    new: frozenset[Key] = frozenset()


def admit(
    play: Play,
    found: Sequence[Member],
    downloaded: Sequence[Mapping[str, float]],
    ended: Sequence[str],
) -> Admitted:
    """Return what each server is given, and refuse what cannot work, unless forced.

    One server, or each of several replicas, is planned with the memory of its nodes; several models
    with what they leave each other.

    Args:
        downloaded: for each server, GiB of its model in the nodes' hub caches; infinite: all.
        ended: programs of ours that give their memory back before the start.

    Raises:
        DoesNotFit: with the reason; of replicas with the node, of models with the figures of each.
        Refused: a recipe lacks what its source needed, or a share is to be computed for one of
            several models whose shape no one knows.
    """
    if found[0].server.instance:
        return _Models(play, found, downloaded, ended).admitted()
    several = len(found) > 1
    shares: dict[Key, float | None] = {}
    for one, has in zip(found, downloaded, strict=True):
        if note := overrides_changed(one.running, one.server):
            one.play.note(note, node=one.node if several else None)
        try:
            shares[one.server.key] = must_work(one.play, one.server, one.running, has, ended)
        except SparkClusterError as error:
            error.where = error.where or (one.node.name if several else "")
            raise
    return Admitted(shares, new=frozenset(o.server.key for o in found if not stays(o)))


def stays(one: Member) -> bool:
    """Return whether a server serves already, or is there to be loaded on request."""
    if one.server.on_request:
        return NEEDS in one.running.labels and was_made_for(one.running, one.server)
    return serves(one.running, one.server)


def must_work(
    play: Play,
    server: Server,
    running: ContainerState,
    downloaded: Mapping[str, float],
    ended: Sequence[str] = (),
) -> float | None:
    """Refuse what the plan says cannot work, unless forced; what serves already, does.

    Args:
        downloaded: GiB of the model that nodes have in the hub cache; infinite: all of it.
        ended: further programs of ours that give their memory back before the start.

    Returns:
        The share that the plan chooses: what is asked for, or all that is safe; None without one.

    Raises:
        DoesNotFit: with the first reason, and the nearest configuration that would work.
        Refused: the recipe lacks what its source needed.
    """
    has_share = not server.chooses_share or share_of(running, server) is not None
    if serves(running, server) and has_share:
        return None
    _must_be_complete(play, server.recipe)
    # Late: formulas, rules and catalogue are read for a start only, not for looking that all is up.
    from spark_cluster.engine.survey import feasibility

    found = feasibility(play, server, running, downloaded, ended)
    if found is None:
        return None
    if not found.fit.launch.on_cpu:  # whose memory is not the one that is planned
        vram.record_plan(play.bus, server.nodes, found.fit.peak_gib, found.fit.vram_gib)
    if not found.feasible:
        _refuse(play, server, found)
    return found.fit.share


def _refuse(play: Play, server: Server, found: Feasibility) -> None:
    """Refuse what the plan says does not fit, or note it where it is forced.

    Raises:
        DoesNotFit: as `must_work`.
    """
    errors = [f"{i.title} ({i.found}); {i.fix}" for i in found.issues if i.severity == "error"]
    reasons = [*found.reasons, *found.obstacles, *errors]
    would = [f"{near.change} would work ({near.why})" for near in found.nearest]
    more = [f"`spark-cluster plan {_named(server)}` shows all", "--force launches anyway"]
    _must_be_forced(play, reasons, DoesNotFit(reasons[0], hint="; ".join([*would[:2], *more])))


def _must_be_forced(play: Play, reasons: Sequence[str], error: DoesNotFit) -> None:
    """Note what does not fit where it is forced; otherwise raise the error."""
    if not play.options.force:
        raise error
    play.note(f"--force: {'; '.join(reasons)}", warning=True)


def _named(server: Server) -> str:
    """The arguments of `plan` for the same."""
    words = [server.recipe.name, "--tp", str(server.tp), options_text(server.recipe.overrides)]
    return " ".join(filter(None, words))


def _must_be_complete(play: Play, recipe: Recipe) -> None:
    """Refuse an imported recipe that lacks what its source needed, unless forced.

    Raises:
        Refused: with all of it.
    """
    missing = [entry for entry in recipe.not_carried_over if entry.blocks]
    if missing and not play.options.force:
        raise Refused(
            f"recipe {recipe.name} cannot work as it was imported: "
            + "; ".join(str(entry) for entry in missing),
            hint="add what is missing and remove the entry from not_carried_over; --force "
            "launches as it is",
        )


def share(
    play: Play, server: Server, running: ContainerState, planned: float | None
) -> float | None:
    """The --gpu-memory-utilization for all ranks, from the node with the least room.

    None when the recipe says it, or how large the KV cache is. A server that serves the same keeps
    its share: the memory that it holds itself is no reason to start it again. One that serves
    something else is ended first, or it would hold what is counted. Where something is started, the
    nodes' memory is prepared for it.

    Args:
        planned: as `must_work` returns it.

    Raises:
        Refused: there is too little for anything.
    """
    same = serves(running, server)
    elsewhere = running.status != "absent" and running.runtime != server.recipe.runtime
    if (elsewhere or (running.status == "running" and not same)) and not play.check:
        _release(play)
    if not same and not play.check:
        readiness.prepare_memory(play, server.nodes)
    if not server.chooses_share:
        return None
    kept = share_of(running, server) if same else None
    if kept is not None:
        return kept
    if not play.check:
        play.refresh(server.nodes)
    highest = _highest(play, server)
    return highest if planned is None else min(planned, highest)


def _highest(play: Play, server: Server) -> float:
    """Return the share that the node with the least room can give."""
    known = {node.name: node.facts.gpu_memory for node in play.nodes}
    name, highest = min(
        ((node.name, utilization(known[node.name])) for node in server.nodes),
        key=lambda item: item[1],
    )
    if highest < LOWEST:
        memory = known[name]
        raise Refused(
            f"only {memory.available_kib / 2**20:.1f} of {memory.total_kib / 2**20:.1f} GiB are "
            "available",
            where=name,
            hint="spark-cluster vram shows who holds it; spark-cluster down stops the server",
        )
    return highest


def share_of(running: ContainerState, server: Server) -> float | None:
    """The share that a server was made with, where its command line says one."""
    wanted = f"--{server.share_flag}"
    for flag, value in zip(running.command, running.command[1:], strict=False):
        if flag == wanted:
            with contextlib.suppress(ValueError):
                return float(value)
    return None


def _release(play: Play) -> None:
    """End what serves something else, on every node, and have its memory back."""
    play.apply(play.nodes, runtime.absent(SERVER, RAY))
    vram.until_free(play.sessions)


# -- several models --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Models:
    """Several models, each with a server of its own, and how they are admitted; see `admit`."""

    play: Play
    found: Sequence[Member]
    downloaded: Sequence[Mapping[str, float]]
    ended: Sequence[str]

    def admitted(self) -> Admitted:
        """Return what each of the models is given.

        A server that serves the same already keeps its share, and what it holds counts as in use:
        the others are planned in what it leaves. What is loaded on request is unloaded before
        anything is started, and keeps its place next to what always is.
        """
        stay = [one for one in self.found if stays(one)]
        new = [one for one in self.found if one not in stay]
        kept = {one.server.key: share_of(one.running, one.server) for one in stay}
        requested = [one for one in stay if one.server.on_request]
        needs = {one.server.key: float(one.running.labels[NEEDS]) for one in requested}
        if not new:
            return Admitted(kept, needs)
        for one in new:
            _must_be_complete(self.play, one.server.recipe)
        # What is started leaves room for what is loaded later, which is unloaded before.
        always_new = any(not one.server.on_request for one in new)
        planned = {
            one.server.key: has
            for one, has in zip(self.found, self.downloaded, strict=True)
            if one in new or (always_new and one.server.on_request)
        }
        made = self._planned(planned, [*self.ended, *(one.server.program for one in requested)])
        return Admitted(
            {**made.shares, **kept},
            {**made.needs_gib, **needs},
            frozenset(one.server.key for one in new),
        )

    def _planned(self, wanted: Mapping[Key, Mapping[str, float]], ended: Sequence[str]) -> Admitted:
        """Plan models next to each other.

        Args:
            wanted: the models that are to be started, and what nodes have of each.
            ended: programs that give their memory back before.
        """
        from spark_cluster.engine.survey import plan_models  # late, as above

        new = [one for one in self.found if one.server.key in wanted]
        models = [
            ServedModel(one.server.recipe, one.node.name, on_request=one.server.on_request)
            for one in new
        ]
        has = [*wanted.values()]
        try:
            plan = plan_models(self.play, models, has, ended)
        except (UsageError, InvalidFile) as error:
            return self._without_plan(new, error)
        # Else the sums are not those of the nodes, or what is held depends on what is asked for.
        if len(new) == len(self.found) and not plan.on_request:
            _record_plan(self.play, plan)
        if reasons := [*plan.reasons, *plan.obstacles]:
            hint = (
                "`spark-cluster plan` shows all; a smaller gpu_memory_utilization, max-num-seqs or "
                "max-model-len in a recipe, or `node: NAME` for one of the models; --force "
                "launches anyway"
            )
            refusal = DoesNotFit("; ".join(reasons), hint=hint)
            _must_be_forced(self.play, reasons, refusal)
        given = {
            one.server.key: fitted.fit.share if one.server.chooses_share else None
            for one, fitted in zip(new, plan.plans, strict=True)
        }
        requested = [one.server.key for one in new if one.server.on_request]
        needs = {
            key: round(memory.whole_gib + RESERVE_GIB, 2)
            for key, memory in zip(requested, plan.on_request, strict=True)
        }
        return Admitted(given, needs)

    def _without_plan(self, new: Sequence[Member], error: UsageError | InvalidFile) -> Admitted:
        """Go on where every recipe says its share itself."""
        servers = [one.server for one in new]
        unsettled = [one.recipe.name for one in servers if one.chooses_share or one.on_request]
        if unsettled:
            raise Refused(
                f"no share of the memory can be computed next to the others: {error.message}",
                where=error.where,
                hint=f"give gpu_memory_utilization in the recipe: {', '.join(unsettled)}",
            ) from None
        self.play.note(f"not planned: {error.message}")
        return Admitted({one.key: None for one in servers})


def _record_plan(play: Play, plan: PlanTogether) -> None:
    """Put the plan's prediction for each node into the run's record."""
    for node in plan.nodes:
        titles = {one.title for one in node.models}
        fits = [one.fit for one in plan.plans if one.title in titles]
        if any(fit.launch.on_cpu for fit in fits):  # whose memory is not the one that is planned
            continue
        at = [n for n in play.nodes if n.name == node.room.name]
        held = [fit.vram_gib for fit in fits]
        # They load one after the other, so the last one's peak comes on top of the others.
        loading = sum(held[:-1]) + max(fits[-1].peak_gib, held[-1])
        vram.record_plan(play.bus, at, loading, sum(held))
