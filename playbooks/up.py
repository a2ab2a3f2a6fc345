"""Bring a verified vLLM endpoint up from any state."""

from __future__ import annotations

from collections.abc import Sequence

from spark_cluster.config.recipe import Recipe
from spark_cluster.inference.process import SERVER
from spark_cluster.runner.play import Play
from spark_cluster.serving import (
    admission,
    dead_engine,
    model_servers,
    ray_cluster,
    readiness,
    replicas,
    short_load,
    startup_log,
    taken_ports,
    tuned,
    vram,
)
from spark_cluster.serving.prepare import announce, prepare
from spark_cluster.serving.proxy import models_of, replicas_of
from spark_cluster.serving.replicas import Group, Member
from spark_cluster.serving.result import Served, served
from spark_cluster.serving.start import bring_up, end_server
from spark_cluster.transfer.fetch import fetch, must_be_there
from spark_cluster.transfer.hub_models import mark_used
from spark_cluster.transfer.stored import stored


def main(
    play: Play,
    *,
    recipe: Recipe,
    tp: int,
    force: bool = False,
    offline: bool = False,
    count: int = 1,
    load: bool = True,
    end_jobs: bool | None = None,
) -> Served | None:
    """Serve `recipe` over `tp` nodes; None where nothing can be verified (check mode, --tags).

    With `force` also what the plan says cannot work; with `offline` from what the nodes have. With
    a `count` of replicas, each on one node. With `load` a server that was started is put under a
    short load, for its GPU memory. With `end_jobs` jobs on Ray are ended; None where the command
    has no flag for it.
    """
    group = replicas.resolve_group(recipe, play.inventory, play.nodes, count, tp)
    plan = group.whole
    found, before, models, text, kernels, jobs = play.together(
        lambda: replicas.members(play, group),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: stored(play, recipe, plan.nodes),
        lambda: replicas.behind(play),
        lambda: tuned.look(play, plan, plan.nodes),
        lambda: ray_cluster.running_jobs(play),
    )
    if group.is_one and (note := replicas.taken_away(replicas_of(text), tp)):
        play.note(note)
    former = models_of(text)
    if note := model_servers.taken_away(former, recipe.name):
        play.note(note)
    if offline:
        must_be_there(recipe, models, adopt=play.options.may_adopt)
    plan = plan.located(models.folders())
    group = replicas.group_of(plan, play.inventory)
    found = replicas.with_plans(found, group)
    announce(play, plan)
    vram.record(play.bus, "before", before)
    ended = [one.program for one in former]
    new = any(one.running.status != "running" for one in found)
    begins = new or any(not admission.serves(one.running, one.plan) for one in found)
    if begins:
        ray_cluster.must_have_no_jobs(play, jobs, end_jobs=end_jobs)
    there = models.there(recipe.model.name)
    replicas.must_work(found, there, force=force, offline=offline, ended=ended)
    if not ended and new:
        # What will be ended frees ports of its own.
        taken_ports.must_be_free(play, plan)
    with play.stage("prepare"):
        guarded = prepare(play, plan)
        if not begins and plan.deployment.on_ray:
            ray_cluster.must_keep_its_jobs(play, jobs, plan, guarded, end_jobs=end_jobs)
    with play.stage("fetch"):
        plan = fetch(play, plan, models, offline=offline)
    with play.stage("start"):
        model_servers.end(play, former)
        parts = replicas.group_of(plan, play.inventory).parts
        parts = tuple(tuned.applied(play, part, kernels) for part in parts)
        group = Group(parts[0] if group.is_one else plan, parts)
        found = replicas.with_plans(found, group)
        if group.is_one:
            again = [bring_up(play, group.whole, found[0].running, guarded)]
        else:
            again = replicas.start(play, group, found, guarded)
    if not _is_started(play, group):
        return None
    return _verified(play, group, found, before, again, load=load)


def _is_started(play: Play, group: Group) -> bool:
    """Return whether there is something to be verified; say it where there is not."""
    left_out = play.options.selection.partial
    if not group.is_one and (play.check or left_out):
        why = "not all was started, so nothing was verified"
    elif play.check:
        why = "check mode: nothing was started, so nothing was verified"
    elif left_out and readiness.container_state(play, SERVER).status == "absent":
        why = "the server was left out, so nothing was verified"
    else:
        return True
    play.note(why)
    return False


def _verified(
    play: Play,
    group: Group,
    found: Sequence[Member],
    before: list[vram.NodeVram],
    again: Sequence[readiness.Again],
    *,
    load: bool,
) -> Served:
    """Wait for the server, or for all replicas, and verify it or each of them."""
    plan = group.whole
    with play.stage("load"):
        peak = replicas.healthy(play, group, found, again)
    with play.stage("verify"):
        startup_log.must_fit(play, plan.nodes, plan.recipe.readiness)
        answer = _answer(play, group, found, again)
        result: Served
        result, made = play.together(
            lambda: served(play, plan, answer, before, peak),
            lambda: replicas.unrecorded(play, found),
        )
    new = any(one is not None for one in made)
    if load and new:
        result = short_load.under_load(play, plan, result)
    replicas.record(play, found, made, result.versions.get(plan.recipe.engine, ""))
    if new or not group.is_one:
        mark_used(play, plan)
    return result


def _answer(
    play: Play, group: Group, found: Sequence[Member], again: Sequence[readiness.Again]
) -> str:
    """Verify each server; one that ran already and whose engine has died is started again, once."""
    try:
        return replicas.verify(play, group, found)
    except readiness.NoCompletion as error:
        if not group.is_one or not again[0] or not dead_engine.is_dead(play, group.whole):
            raise
        play.note(f"the server that ran already fails: {error.message}; it is started again")
    end_server(play, group.whole)
    again[0].start()
    replicas.healthy(play, group, found, again)
    return replicas.verify(play, group, found)
