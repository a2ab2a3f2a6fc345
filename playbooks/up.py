"""Bring a verified vLLM endpoint up from any state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from spark_cluster.config.recipe import Recipe
from spark_cluster.inference.process import SERVER
from spark_cluster.runner.play import Play
from spark_cluster.serving import (
    admission,
    launches,
    model_servers,
    readiness,
    replicas,
    rungs,
    short_load,
    startup_log,
    taken_ports,
    tuned,
    vram,
)
from spark_cluster.serving.nodes import serving
from spark_cluster.serving.plan import ServePlan, resolve
from spark_cluster.serving.prepare import announce, prepare
from spark_cluster.serving.proxy import models_of, replicas_of
from spark_cluster.serving.result import Served, served
from spark_cluster.serving.start import end_dead_server, start
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
) -> Served | None:
    """Serve `recipe` over `tp` nodes; None where nothing can be verified (check mode, --tags).

    With `force` also what the plan says cannot work; with `offline` from what the nodes have. With
    a `count` of replicas, each on one node. With `load` a server that was started is put under a
    short load, for its GPU memory.
    """
    if count > 1:
        return with_replicas(play, recipe, count, force=force, offline=offline)
    nodes, _ = serving(play.nodes, tp, recipe.nodes_for(tp))
    running, before, models, text, kernels = play.together(
        lambda: readiness.container_state(play, SERVER),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: stored(play, recipe, nodes),
        lambda: replicas.behind(play),
        lambda: tuned.look(play, recipe, nodes),
    )
    if note := replicas.taken_away(replicas_of(text), tp):
        play.note(note)
    former = models_of(text)
    if note := model_servers.taken_away(former, recipe.name):
        play.note(note)
    if offline:
        must_be_there(recipe, models)
    plan = resolve(recipe.located(models.folders()), play.inventory, play.nodes, tp)
    announce(play, plan)
    vram.record(play.bus, "before", before)
    if note := admission.overrides_changed(running, plan):
        play.note(note)
    ended = [one.program for one in former]
    there = models.there(recipe.model.name)
    admission.must_work(play, plan, running, there, force=force, offline=offline, ended=ended)
    if running.status != "running":
        _must_find_free_ports(play, plan, ended)
    with play.stage("prepare"):
        guarded = prepare(play, plan)
    with play.stage("fetch"):
        fetched = fetch(play, plan, models)
        if fetched is not plan.recipe:
            plan = resolve(fetched, play.inventory, play.nodes, tp)
    with play.stage("start"):
        model_servers.end(play, former)
        plan = tuned.applied(play, plan, kernels)
        launches.before_start(play, plan, running)
        share = admission.share(play, plan, running)
        if running.status == "running":
            end_dead_server(play, plan)
        begin = partial(start, play, plan, share, guarded)
        started = begin()
    if play.check:
        play.note("check mode: nothing was started, so nothing was verified")
        return None
    left_out = play.options.selection.partial
    if left_out and readiness.container_state(play, SERVER).status == "absent":
        play.note("the server was left out, so nothing was verified")
        return None
    return _verified(play, plan, before, None if started else begin, load=load)


def with_replicas(
    play: Play, recipe: Recipe, count: int, *, force: bool, offline: bool
) -> Served | None:
    """Serve `recipe` on each of so many nodes, behind one endpoint; None as in `main`."""
    group = replicas.resolve_group(recipe, play.inventory, play.nodes, count)
    announce(play, group.whole)
    found, before, models, text, kernels = play.together(
        lambda: replicas.members(play, group),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: stored(play, recipe, group.whole.nodes),
        lambda: replicas.behind(play),
        lambda: tuned.look(play, recipe, group.whole.nodes),
    )
    former = models_of(text)
    if note := model_servers.taken_away(former, recipe.name):
        play.note(note)
    if offline:
        must_be_there(recipe, models)
    vram.record(play.bus, "before", before)
    there = models.there(recipe.model.name)
    ended = [one.program for one in former]
    replicas.must_work(found, there, force=force, offline=offline, ended=ended)
    if any(one.running.status != "running" for one in found):
        _must_find_free_ports(play, group.whole, ended)
    with play.stage("prepare"):
        guarded = prepare(play, group.whole)
    with play.stage("fetch"):
        fetched = fetch(play, group.whole, models).located(models.folders())
        group = replicas.resolve_group(fetched, play.inventory, play.nodes, count)
        group = replace(
            group, parts=tuple(tuned.applied(play, part, kernels) for part in group.parts)
        )
        found = replicas.with_plans(found, group)
    with play.stage("start"):
        model_servers.end(play, former)
        again = replicas.start(play, group, found, guarded)
    if play.check or play.options.selection.partial:
        play.note("not all was started, so nothing was verified")
        return None
    with play.stage("load"):
        peak = replicas.healthy(play, group, found, again)
    with play.stage("verify"):
        startup_log.must_fit(play, group.whole.nodes, recipe.readiness)
        answer = replicas.verify(play, group, found)
        result = served(play, group.whole, answer, before, peak)
        made = replicas.unrecorded(play, found)
    if any(one is not None for one in made):
        result = short_load.under_load(play, group.whole, result)
    replicas.record(play, found, made, result.versions.get(recipe.engine, ""))
    mark_used(play, group.whole)
    return result


def _must_find_free_ports(play: Play, plan: ServePlan, ended: Sequence[str]) -> None:
    """Refuse ports that another program has; what will be ended may be that, and frees its own."""
    if not ended:
        taken_ports.must_be_free(play, plan)


def _verified(
    play: Play,
    plan: ServePlan,
    before: list[vram.NodeVram],
    again: Callable[[], object] | None,
    *,
    load: bool,
) -> Served:
    """Wait for the server, and verify it; `again` as in `readiness.healthy`."""
    with play.stage("load"):
        limit, engine = plan.recipe.ready_timeout_s, plan.recipe.engine
        peak = readiness.healthy(play, plan.endpoint, limit, plan.ranks, engine, again=again)
    with play.stage("verify"):
        startup_log.must_fit(play, plan.nodes, plan.recipe.readiness)
        answer = rungs.climb(play, plan)
        result: Served
        result, made = play.together(
            lambda: served(play, plan, answer, before, peak),
            lambda: launches.unrecorded(play, plan),
        )
    if load and made is not None:
        result = short_load.under_load(play, plan, result)
    launches.record(play, plan, made, result.versions.get(plan.recipe.engine, ""))
    if made is not None:
        mark_used(play, plan)
    return result
