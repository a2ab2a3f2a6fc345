"""Several models before they are started: can they work next to each other, with which shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_cluster.errors import DoesNotFit, InvalidFile, Refused, UsageError
from spark_cluster.inference.process import PROGRAMS
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
        """True if it serves already."""
        return admission.serves(self.member.running, self.member.plan)


def shares(
    play: Play,
    models: Sequence[Starting],
    ended: Sequence[str],
    *,
    force: bool,
    offline: bool = False,
) -> dict[str, float | None]:
    """Return the --gpu-memory-utilization of each server, and refuse what cannot work.

    A server that serves the same already keeps its share, and what it holds counts as in use: the
    others are planned in what it leaves.

    Args:
        ended: programs of ours that give their memory back before the start.
        force: go on with what does not fit.
        offline: the hub is not asked for the models' shapes.

    Returns:
        Name of the server's program to its share; None where the recipe says it, or how large the
        KV cache is.

    Raises:
        DoesNotFit: with the sum and the figures of each.
        Refused: a recipe lacks what its source needed, or a share is to be computed for a model
            whose shape no one knows.
    """
    found = {
        one.member.plan.server: admission.kept_share(one.member.running, one.member.plan)
        for one in models
        if one.serves
    }
    new = [one for one in models if not one.serves]
    if not new:
        return found
    for one in new:
        admission.must_be_whole(one.model.recipe, force=force)
    whole = len(new) == len(models)
    return found | _planned(play, new, ended, whole=whole, force=force, offline=offline)


def _planned(
    play: Play,
    new: Sequence[Starting],
    ended: Sequence[str],
    *,
    whole: bool,
    force: bool,
    offline: bool,
) -> dict[str, float | None]:
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
        replace(one, facts=replace(one.facts, memory=one.room.memory)) if one.facts else one
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
    return {
        one.member.plan.server: fitted.fit.share if one.member.plan.chooses_share else None
        for one, fitted in zip(new, plan.plans, strict=True)
    }


def _without_plan(
    play: Play, new: Sequence[Starting], error: UsageError | InvalidFile
) -> dict[str, float | None]:
    """Go on where every recipe says its share itself."""
    unsettled = [one.model.recipe.name for one in new if one.member.plan.chooses_share]
    if unsettled:
        raise Refused(
            f"no share of the memory can be computed next to the others: {error.message}",
            where=error.where,
            hint=f"give gpu_memory_utilization in the recipe: {', '.join(unsettled)}",
        ) from None
    play.note(f"not planned: {error.message}")
    return {one.member.plan.server: None for one in new}
