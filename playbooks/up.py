"""Bring a verified endpoint up from any state: one server, replicas, or several models."""

from __future__ import annotations

from spark_cluster.engine import firewall, launches, ray_cluster, start, tuning
from spark_cluster.engine.admission import admit
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.fetch import fetch, look
from spark_cluster.engine.readiness import with_servers
from spark_cluster.engine.ready import ready, under_load, verify
from spark_cluster.engine.result import Served, served
from spark_cluster.engine.start import announce, prepare
from spark_cluster.runner.play import Play


def main(
    play: Play,
    *,
    deployment: Deployment,
    load: bool = True,
    end_jobs: bool | None = None,
) -> Served | None:
    """Serve a deployment; None where nothing can be verified (check mode, --tags).

    With `load` a server that was started is put under a short load, for its GPU memory. With
    `end_jobs` jobs on Ray are ended; None where the command has no flag for it.
    """
    found = look(play, deployment)
    deployment = found.deployment
    obsolete = start.obsolete_programs(deployment, found.behind)
    announce(play, deployment, found.behind)
    if found.begins:
        ray_cluster.must_have_no_jobs(play, found.jobs, end_jobs=end_jobs)
    ended = sorted({name for programs in obsolete.values() for name in programs})
    admitted = admit(play, found.members, found.downloaded, ended)
    if found.starts and not ended:  # what will be ended frees ports of its own
        firewall.must_be_free(play, deployment)
    with play.stage("prepare"):
        deployment = prepare(play, deployment)
        if not found.begins and deployment.first.on_ray:
            server = deployment.first
            ray_cluster.must_keep_its_jobs(play, found.jobs, server, end_jobs=end_jobs)
    with play.stage("fetch"):
        deployment = fetch(play, deployment, found.stores)
    with play.stage("start"):
        start.end_others(play, deployment, found.members, obsolete)
        deployment = tuning.with_tuned(play, deployment, found.kernels)
        members = with_servers(found.members, deployment)
        now = start.Starting(deployment, members, admitted, found.ray_token)
        start.start(play, now)
    if not start.can_verify(play, deployment):
        return None
    with play.stage("load"):
        peak = ready(play, now)
    with play.stage("verify"):
        answers = verify(play, now)
        result: Served
        result, new = play.together(
            lambda: served(play, deployment, members, answers, before=found.before, peak=peak),
            lambda: launches.unrecorded(play, members, answers),
        )
    if load and new and not deployment.endpoint.models:
        result = under_load(play, result)
    launches.record(new, {one.server.key: one.version for one in result.servers})
    return result
