"""Bring several models up next to each other, behind one endpoint, from any state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spark_cluster.runner.play import Play
from spark_cluster.serving import model_loading, model_servers, ray_cluster, replicas, vram
from spark_cluster.serving.model_admission import Starting, admit
from spark_cluster.serving.models import ServedModel, resolve_models
from spark_cluster.serving.prepare import announce, announce_recipe, prepare
from spark_cluster.serving.proxy import models_of, replicas_of
from spark_cluster.serving.result import ServedTogether, served_together
from spark_cluster.transfer.fetch import fetch, must_be_there
from spark_cluster.transfer.hub_models import mark_used
from spark_cluster.transfer.stored import stored


def main(
    play: Play,
    *,
    models: Sequence[ServedModel],
    force: bool = False,
    offline: bool = False,
    end_jobs: bool = False,
) -> ServedTogether | None:
    """Serve the models; None where nothing can be verified (check mode, --tags).

    With `force` also what the plan says cannot work; with `offline` from what the nodes have; with
    `end_jobs` jobs on Ray are ended.
    """
    group = resolve_models(models, play.inventory, play.nodes)
    announce(play, group.whole)
    for plan in group.parts[1:]:
        announce_recipe(play, plan)
    found, before, text, *stores = play.together(
        lambda: replicas.members(play, group),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: replicas.behind(play),
        *[partial(stored, play, plan.recipe, plan.nodes) for plan in group.parts],
    )
    if offline:
        for plan, there in zip(group.parts, stores, strict=True):
            must_be_there(plan.recipe, there, adopt=play.options.may_adopt)
    vram.record(play.bus, "before", before)
    if any(one.running.status != "running" for one in found):
        ray_cluster.must_have_no_jobs(play, ray_cluster.running_jobs(play), end_jobs=end_jobs)
    former = model_servers.stale(group, models_of(text), replicas_of(text))
    starting = [
        Starting(model, member, there.there(model.recipe.model.name))
        for model, member, there in zip(models, found, stores, strict=True)
    ]
    ended = sorted({name for names in former.values() for name in names})
    admitted = admit(play, starting, ended, force=force, offline=offline)
    with play.stage("prepare"):
        guarded = prepare(play, group.whole)
    with play.stage("fetch"):
        pairs = zip(group.parts, stores, strict=True)
        parts = [fetch(play, *pair, offline=offline) for pair in pairs]
        group = replace(group, parts=tuple(parts))
        found = replicas.with_plans(found, group)
    with play.stage("start"):
        model_servers.end_others(play, group, former)
        if admitted.new:
            model_loading.unload(play, found)
        # The proxy's file names the servers: a run that is cut off leaves none that is not known.
        endpoint = group.whole.endpoint.proxy_settings()
        play.apply(group.whole.nodes, play.role("endpoint", **endpoint))
    with play.stage("load"):
        peak = model_servers.start(play, found, guarded, admitted)
        loader = model_loading.settings(found, group.whole.endpoint)
        play.apply(group.whole.nodes, play.role("model_loader", **loader))
    if play.check or play.options.selection.partial:
        play.note("not all was started, so nothing was verified")
        return None
    with play.stage("verify"):
        answers = model_servers.verify(play, group, found, admitted.new)
        result = served_together(
            play, group.whole.endpoint, found, answers, before=before, peak=peak
        )
    model_servers.record(found, [part.version for part in result.parts])
    for plan in group.parts:
        mark_used(play, plan)
    return result
