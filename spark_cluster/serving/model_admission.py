"""Several models before they are started: can they work next to each other, with which shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_cluster.errors import DoesNotFit, InvalidFile, Refused, UsageError
from spark_cluster.inference.process import PROGRAMS
from spark_cluster.models.memory import RESERVE_GIB
from spark_cluster.node.containers import NEEDS
from spark_cluster.runner.play import Play
from spark_cluster.serving import admission, model_lookup, vram
from spark_cluster.serving.models import ServedModel, placed
from spark_cluster.serving.replicas import Member


@dataclass(frozen=True)
class Starting:
    """A model and its server as it was found.

    Attributes:
        there: GiB of the model that nodes have in the hub cache; infinite: all of it.
    """

    model: ServedModel
    member: Member
    there: Mapping[str, float]

    @property
    def serves(self) -> bool:
        """True if it serves already, or is there to be loaded on request."""
        running, plan = self.member.running, self.member.plan
        if self.model.on_request:
            return NEEDS in running.labels and admission.was_made_for(running, plan)
        return admission.serves(running, plan)


@dataclass(frozen=True)
class Admitted:
    """What the plan gives each server, by the name of its program.

    Attributes:
        shares: its --gpu-memory-utilization; None where the recipe says it, or how large the KV
            cache is.
        needs_gib: what must be available before it is loaded, of those that are on request.
        new: those that are started, or made.
    """

    shares: Mapping[str, float | None]
    needs_gib: Mapping[str, float] = field(default_factory=dict)
    new: frozenset[str] = frozenset()


def admit(
    play: Play,
    models: Sequence[Starting],
    ended: Sequence[str],
    *,
    force: bool,
    offline: bool = False,
) -> Admitted:
    """Return what each server is given, and refuse what cannot work.

    A server that serves the same already keeps its share, and what it holds counts as in use: the
    others are planned in what it leaves. What is loaded on request is unloaded before anything is
    started, and keeps its place next to what always is.

    Args:
        ended: programs of ours that give their memory back before the start.
        force: go on with what does not fit.
        offline: the hub is not asked for the models' shapes.

    Raises:
        DoesNotFit: with the sum and the figures of each.
        Refused: a recipe lacks what its source needed, or a share is to be computed for a model
            whose shape no one knows.
    """
    there = [one for one in models if one.serves]
    new = [one for one in models if not one.serves]
    kept = {
        one.member.plan.server: admission.share_of(one.member.running, one.member.plan)
        for one in there
    }
    needs = {
        one.member.plan.server: float(one.member.running.labels[NEEDS])
        for one in there
        if one.model.on_request
    }
    if not new:
        return Admitted(kept, needs)
    for one in new:
        admission.must_be_whole(one.model.recipe, force=force)
    # What is started leaves room for what is loaded later, which is unloaded before.
    always_new = any(not one.model.on_request for one in new)
    planned = [one for one in models if one in new or (always_new and one.model.on_request)]
    unloaded = [one.member.plan.server for one in there if one.model.on_request]
    whole = len(planned) == len(models)
    made = _planned(play, planned, [*ended, *unloaded], whole=whole, force=force, offline=offline)
    return Admitted(
        {**made.shares, **kept},
        {**made.needs_gib, **needs},
        frozenset(one.member.plan.server for one in new),
    )


def _planned(
    play: Play,
    new: Sequence[Starting],
    ended: Sequence[str],
    *,
    whole: bool,
    force: bool,
    offline: bool,
) -> Admitted:
    """Plan the models that are to be started.

    Args:
        whole: they are all that there are, so that the sums are those of the nodes.
    """
    # Late: formulas, rules and catalogue are read for a start only, not for looking that all is up.
    from spark_cluster.planning.planner import Planner
    from spark_cluster.planning.together import plan_together

    asked = placed(play, [one.model for one in new], [one.there for one in new])
    ours = admission.our_processes(play, [one.room.name for one in asked], (*PROGRAMS, *ended))
    asked = [
        replace(one, room=admission.without_ours(one.room, ours[one.room.name])) for one in asked
    ]
    asked = [
        replace(one, facts=one.facts.with_gpu_memory(one.room.memory)) if one.facts else one
        for one in asked
    ]
    for one in asked:  # what the hub says of them is kept on this machine
        model_lookup.hub_for(play, one.subject, offline=offline)
    try:
        plan = plan_together(Planner(play.project), asked)
    except (UsageError, InvalidFile) as error:
        return _without_plan(play, new, error)
    if whole:
        for node in plan.nodes:
            titles = {one.title for one in node.models}
            fits = [one.fit for one in plan.plans if one.title in titles]
            if plan.on_request:
                continue  # what is held depends on what is asked for
            at = [n for n in play.nodes if n.name == node.room.name]
            reserved = [fit.reserved_gib for fit in fits]
            # They load one after the other, so the last one's peak comes on top of the others.
            loading = sum(reserved[:-1]) + max(fits[-1].peak_gib, reserved[-1])
            vram.record_plan(play.bus, at, loading, sum(reserved))
    reasons = [*plan.reasons, *plan.obstacles]
    if reasons and not force:
        raise DoesNotFit(
            "; ".join(reasons),
            hint="`spark-cluster plan` shows all; a smaller gpu_memory_utilization, max-num-seqs "
            "or max-model-len in a recipe, or `node: NAME` for one of the models; --force "
            "launches anyway",
        )
    if reasons:
        play.note(f"--force: {'; '.join(reasons)}", warning=True)
    given = {
        one.member.plan.server: fitted.fit.share if one.member.plan.chooses_share else None
        for one, fitted in zip(new, plan.plans, strict=True)
    }
    requested = [one.member.plan.server for one in new if one.model.on_request]
    needs = {
        program: round(memory.whole_gib + RESERVE_GIB, 2)
        for program, memory in zip(requested, plan.on_request, strict=True)
    }
    return Admitted(given, needs)


def _without_plan(play: Play, new: Sequence[Starting], error: UsageError | InvalidFile) -> Admitted:
    """Go on where every recipe says its share itself."""
    unsettled = [
        one.model.recipe.name
        for one in new
        if one.member.plan.chooses_share or one.model.on_request
    ]
    if unsettled:
        raise Refused(
            f"no share of the memory can be computed next to the others: {error.message}",
            where=error.where,
            hint=f"give gpu_memory_utilization in the recipe: {', '.join(unsettled)}",
        ) from None
    play.note(f"not planned: {error.message}")
    return Admitted({one.member.plan.server: None for one in new})
