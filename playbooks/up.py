"""Bring a verified vLLM endpoint up from any state."""

from __future__ import annotations

from spark_cluster.config.recipe import Recipe
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.inference.runtime import absent
from spark_cluster.runner.play import Play
from spark_cluster.serving import (
    admission,
    launches,
    readiness,
    replicas,
    rungs,
    startup_log,
    taken_ports,
    vram,
)
from spark_cluster.serving.nodes import serving
from spark_cluster.serving.plan import ServePlan, resolve
from spark_cluster.serving.result import Served, served
from spark_cluster.serving.start import end_dead_server, guard, start
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
) -> Served | None:
    """Serve `recipe` over `tp` nodes; None where nothing can be verified (check mode, --tags).

    With `force` also what the plan says cannot work; with `offline` from what the nodes have. With
    a `count` of replicas, each on one node.
    """
    if count > 1:
        return with_replicas(play, recipe, count, force=force, offline=offline)
    nodes, _ = serving(play.nodes, tp, recipe.nodes_for(tp))
    running, before, models, several = play.together(
        lambda: readiness.container_state(play, SERVER),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: stored(play, recipe, nodes),
        lambda: replicas.behind(play),
    )
    if note := replicas.taken_away(several, tp):
        play.note(note)
    if offline:
        must_be_there(recipe, models)
    plan = resolve(recipe.located(models.folders()), play.inventory, play.nodes, tp)
    announce(play, plan)
    vram.record(play.bus, "before", before)
    if note := admission.overrides_changed(running, plan):
        play.note(note)
    admission.must_work(
        play, plan, running, models.there(recipe.model.name), force=force, offline=offline
    )
    if running.status != "running":
        taken_ports.must_be_free(play, plan)
    with play.stage("prepare"):
        guarded = prepare(play, plan)
    with play.stage("fetch"):
        fetched = fetch(play, plan, models)
        if fetched is not plan.recipe:
            plan = resolve(fetched, play.inventory, play.nodes, tp)
    with play.stage("start"):
        launches.before_start(play, plan, running)
        share = admission.share(play, plan, running)
        if running.status == "running":
            end_dead_server(play, plan)
        start(play, plan, share, guarded)
    if play.check:
        play.note("check mode: nothing was started, so nothing was verified")
        return None
    left_out = play.options.selection.partial
    if left_out and readiness.container_state(play, SERVER).status == "absent":
        play.note("the server was left out, so nothing was verified")
        return None
    with play.stage("load"):
        limit = recipe.ready_timeout_s
        peak = readiness.healthy(play, plan.endpoint, limit, plan.ranks, recipe.engine)
    with play.stage("verify"):
        startup_log.must_fit(play, plan.nodes, recipe.readiness)
        answer = rungs.climb(play, plan)
        result: Served
        result, made = play.together(
            lambda: served(play, plan, answer, before, peak),
            lambda: launches.unrecorded(play, plan),
        )
    launches.record(play, plan, made, result.versions.get(recipe.engine, ""))
    if made is not None:
        mark_used(play, plan)
    return result


def with_replicas(
    play: Play, recipe: Recipe, count: int, *, force: bool, offline: bool
) -> Served | None:
    """Serve `recipe` on each of so many nodes, behind one endpoint; None as in `main`."""
    group = replicas.resolve_group(recipe, play.inventory, play.nodes, count)
    announce(play, group.whole)
    found, before, models = play.together(
        lambda: replicas.members(play, group),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: stored(play, recipe, group.whole.nodes),
    )
    if offline:
        must_be_there(recipe, models)
    vram.record(play.bus, "before", before)
    there = models.there(recipe.model.name)
    replicas.must_work(found, there, force=force, offline=offline)
    if any(one.running.status != "running" for one in found):
        taken_ports.must_be_free(play, group.whole)
    with play.stage("prepare"):
        guarded = prepare(play, group.whole)
    with play.stage("fetch"):
        fetched = fetch(play, group.whole, models).located(models.folders())
        group = replicas.resolve_group(fetched, play.inventory, play.nodes, count)
        found = replicas.with_plans(found, group)
    with play.stage("start"):
        replicas.start(play, group, found, guarded)
    if play.check or play.options.selection.partial:
        play.note("not all was started, so nothing was verified")
        return None
    with play.stage("load"):
        peak = replicas.healthy(play, group, found)
    with play.stage("verify"):
        startup_log.must_fit(play, group.whole.nodes, recipe.readiness)
        answer = replicas.verify(play, group, found)
        result = served(play, group.whole, answer, before, peak)
    replicas.record(play, found, result.versions.get(recipe.engine, ""))
    mark_used(play, group.whole)
    return result


def announce(play: Play, plan: ServePlan) -> None:
    """Say at each run what the user may not want: an open endpoint, variables of this machine."""
    serve = play.inventory.serve
    if serve.open and not serve.on_loopback:
        play.note(
            f"serve.open: anyone who reaches {plan.endpoint.host} may use the endpoint; "
            "`api_key: {env: NAME}` instead requires a key",
            warning=True,
        )
    if plan.recipe.secret_env:
        names = ", ".join(ref.env for ref in plan.recipe.secret_env.values())
        play.note(f"the recipe gives the containers {names} from this machine's environment")
    build = plan.recipe.image.build
    if build is not None and build.steps:
        steps = ", ".join(step.shown for step in build.steps)
        play.note(f"scripts of the recipe change the image, as root in its build: {steps}")


def prepare(play: Play, plan: ServePlan) -> str:
    """Link, firewall, Docker and caches on the nodes that serve; nothing of ours on the others.

    Returns:
        Whether there is a firewall: `present` or `absent`.
    """
    link = ("network",) if len(plan.nodes) > 1 else ()
    guarded = guard(play, plan)
    front = ("haproxy",) if plan.endpoint.engine_port is not None else ()
    docker = ("containers",) if plan.deployment.runtime == "docker" else ()
    made = play.apply(plan.nodes, *link, guarded, *docker, "caches", *front)
    if made.changed and not play.check:
        play.refresh(plan.nodes)  # Docker's version, the fabric's addresses
    if plan.idle:
        play.apply(
            plan.idle,
            absent(SERVER, RAY),
            play.role("endpoint"),
            play.role("firewall", state="absent"),
        )
    return str(guarded.given["state"])
