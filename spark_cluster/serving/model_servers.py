"""The servers of several models: started one after the other on each node, waited for, verified."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from spark_cluster.errors import Refused, VerificationFailed
from spark_cluster.inference import runtime
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.node import replies
from spark_cluster.node.containers import NEEDS
from spark_cluster.node.health import HEALTH_S, judge
from spark_cluster.runner.play import Play
from spark_cluster.serving import (
    admission,
    launches,
    load_guard,
    load_progress,
    model_loading,
    readiness,
    rungs,
    startup_log,
    vram,
)
from spark_cluster.serving.endpoint import Endpoint
from spark_cluster.serving.kind_probe import ANSWERS, probe_once, short
from spark_cluster.serving.model_admission import Admitted
from spark_cluster.serving.proxy import ModelServer, Replica, models_of
from spark_cluster.serving.replicas import BEHIND_PROXY_S, Group, Member, behind
from spark_cluster.serving.start import end_dead_server

POLL_S = 0.5
"""Seconds between two questions to the proxy."""

ANSWER_S = 120.0
"""Seconds that an answer through the proxy may take."""


def taken_away(now: Sequence[ModelServer], recipe: str) -> str:
    """Say that one recipe takes the place of several models; empty where there are none."""
    if not now:
        return ""
    names = ", ".join(server.model for server in now)
    return (
        f"the endpoint has {len(now)} models ({names}), and {recipe} takes their place; `up` "
        "without --recipe serves what the inventory lists"
    )


def must_serve_one(play: Play, what: str) -> None:
    """Refuse a command that is for one server where the endpoint has several models.

    Args:
        what: the command and its verb.

    Raises:
        Refused: it has; with their names.
    """
    now = models_of(behind(play))
    if now:
        raise Refused(
            f"the endpoint has {len(now)} models ({', '.join(one.model for one in now)}), and "
            f"{what} one server only",
            where=play.head.name,
            hint="`spark-cluster up` repairs and changes what the inventory lists; "
            "`spark-cluster up --recipe NAME` serves one recipe in place of them",
        )


def stale(
    group: Group, models: Sequence[ModelServer], replicas: Sequence[Replica]
) -> dict[str, list[str]]:
    """Return by node the programs of ours that have no place next to the models.

    Args:
        models, replicas: what the endpoint has now.
    """
    wanted = {(plan.nodes[0].name, plan.server) for plan in group.parts}
    found: dict[str, list[str]] = {}
    for server in models:
        if (server.node, server.program) not in wanted:
            found.setdefault(server.node, []).append(server.program)
    for replica in replicas:
        found.setdefault(replica.node, []).append(SERVER)
    return found


def end(play: Play, models: Sequence[ModelServer]) -> None:
    """End the servers of several models, and have their memory back."""
    if not models:
        return
    play.apply(
        play.nodes,
        play.role("model_loader"),
        runtime.absent(*{one.program for one in models}, stop_timeout_s=30),
    )
    if not play.check:
        vram.until_free(play.sessions)


def end_others(play: Play, group: Group, former: Mapping[str, Sequence[str]]) -> None:
    """End what serves anything else, before memory is counted on by any, and wait for it.

    Args:
        former: as `stale` gives it.
    """
    names = {SERVER, RAY, *(name for programs in former.values() for name in programs)}
    kept = {plan.server for plan in group.parts}
    # A model that moved to another node keeps its name there.
    moved = {node: set(programs) & kept for node, programs in former.items()}
    made = play.apply(play.nodes, runtime.absent(*sorted(names - kept), stop_timeout_s=30))
    for node in play.nodes:
        if moved.get(node.name):
            play.apply(node, runtime.absent(*sorted(moved[node.name]), stop_timeout_s=30))
    if play.check or not (made.changed or any(moved.values())):
        return
    stays = admission.our_processes(play, [node.name for node in play.nodes], sorted(kept))
    vram.until_free(play.sessions, ignored=stays)


def start(
    play: Play,
    found: Sequence[Member],
    guarded: str,
    admitted: Admitted,
) -> list[vram.NodeVram]:
    """Start each server that is not as it should be, and wait until it is healthy.

    One after the other on a node, because an engine measures the free memory while it starts; the
    nodes at the same time. Those on request are made only.

    Args:
        guarded: whether there is a firewall, for the containers' label.
        admitted: what each server is given.

    Returns:
        The largest VRAM of each node seen meanwhile; none in check mode.

    Raises:
        Failed: a server ended; with the first real error of its log.
        VerificationFailed: one is not healthy in time.
    """

    def on_node(members: Sequence[Member]) -> list[vram.NodeVram]:
        peak: list[vram.NodeVram] = []
        for one in members:
            now = _start_one(one, guarded, admitted)
            peak = vram.peak(peak, now) if now else peak
        return peak

    names = dict.fromkeys(one.node.name for one in found)
    by_node = [[one for one in found if one.node.name == name] for name in names]
    peaks = play.together(*[partial(on_node, members) for members in by_node])
    return [reading for peak in peaks for reading in peak]


def _start_one(one: Member, guarded: str, admitted: Admitted) -> list[vram.NodeVram]:
    play, plan = one.play, one.plan
    launches.before_start(play, plan, one.running)
    made = plan.starting(share=admitted.shares[plan.server], guarded=guarded, ray_token=None)
    if plan.deployment.on_request:
        labels = {**made.labels, NEEDS: str(admitted.needs_gib[plan.server])}
        play.apply(one.node, play.role("vllm", deployment=replace(made, labels=labels)))
        return []
    if one.running.status == "running":
        end_dead_server(play, plan)
    if not play.check and not admission.serves(one.running, plan):
        load_guard.prepare(play, [one.node])
    server = partial(play.apply, one.node, play.role("vllm", deployment=made))
    started = runtime.changed(server().changes(one.node.name), plan.server)
    if play.check or play.options.selection.partial:
        return []
    return readiness.healthy(
        play,
        plan.endpoint,
        plan.engine,
        plan.recipe.ready_timeout_s,
        server=plan.server,
        nodes=plan.nodes,
        again=readiness.Again(None if started else server),
        look=partial(load_progress.look, play, plan.deployment),
    )


def verify(
    play: Play, group: Group, found: Sequence[Member], new: Collection[str] = ()
) -> list[str]:
    """Climb each recipe's rungs on its own server, then ask the endpoint for each model.

    Args:
        new: servers that were started or made. One that is loaded on request is asked for, and so
            loaded, when it is among them; otherwise it is left as it is.

    Returns:
        The answer of each to its own question; empty for one that was left.

    Raises:
        VerificationFailed: at the first rung that does not hold, or the proxy does not lead to one.
    """
    always = [one for one in found if not one.plan.deployment.on_request]
    for one in always:
        startup_log.must_fit(one.play, [one.node], one.plan.recipe.readiness, one.plan.server)
    climbed = play.together(*[partial(rungs.climb, one.play, one.plan) for one in always])
    answers: dict[str, str] = {
        one.plan.server: answer for one, answer in zip(always, climbed, strict=True)
    }
    endpoint = group.whole.endpoint
    _until_all_are_behind(play, endpoint)
    _must_list(play, endpoint)
    play.together(*[partial(_must_reach, play, endpoint, one) for one in always])
    for one in found:  # one after the other: each may unload the one before
        if one.plan.deployment.on_request and one.plan.server in new:
            model_loading.load(play, endpoint, one)
            startup_log.must_fit(one.play, [one.node], one.plan.recipe.readiness, one.plan.server)
            answers[one.plan.server] = rungs.climb(one.play, one.plan)
    return [answers.get(one.plan.server, "") for one in found]


def _until_all_are_behind(play: Play, endpoint: Endpoint) -> None:
    """Wait until the proxy has seen every server healthy; it looks every second.

    Raises:
        VerificationFailed: it has not in time.
    """
    deadline = time.monotonic() + BEHIND_PROXY_S
    session = play.session(play.head)
    while True:
        answer = endpoint.request(session, "/health", timeout=HEALTH_S)
        if judge(None, answer.status).serves:
            return
        if time.monotonic() > deadline:
            raise VerificationFailed(
                f"each model answers by itself, but the endpoint {endpoint.url} is not healthy: "
                f"status {answer.status} {answer.reason}".rstrip(),
                where=play.head.name,
                hint="journalctl -u spark-cluster-endpoint there says what the proxy does",
            )
        time.sleep(POLL_S)


def _must_list(play: Play, endpoint: Endpoint) -> None:
    """Raise VerificationFailed unless the endpoint lists every name."""
    answer = endpoint.request(play.session(play.head), "/v1/models")
    listed = replies.at(replies.decoded(answer.body), "data")
    found = {replies.at(one, "id") for one in listed} if isinstance(listed, list) else set()
    wanted = {name for server in endpoint.models for name in server.names}
    if answer.status != 200 or wanted - found:
        raise VerificationFailed(
            f"GET {endpoint.url}/models lists {json.dumps(sorted(map(str, found)))} (status "
            f"{answer.status}), expected {json.dumps(sorted(wanted))}",
            where=play.head.name,
            hint="another program has the endpoint's port, or the proxy has another configuration",
        )


def _must_reach(play: Play, endpoint: Endpoint, one: Member) -> None:
    """Raise VerificationFailed unless a request for a model is answered through the proxy."""
    recipe = one.plan.recipe
    asked = replace(endpoint, model=one.plan.endpoint.model)
    reply = probe_once(
        play.session(play.head), asked, recipe.kind, short(recipe.probe), timeout=ANSWER_S
    )
    if not judge(None, None, reply).serves:
        raise VerificationFailed(
            f"{asked.model} answers by itself, but through {endpoint.url} {ANSWERS[recipe.kind]} "
            f"does not come: status {reply.status} {reply.why}".rstrip(),
            where=play.head.name,
            hint="journalctl -u spark-cluster-endpoint there says what the proxy does",
        )


def record(found: Sequence[Member], versions: Sequence[str]) -> None:
    """Write the record of each launch that has none on its node.

    Args:
        versions: of their engines; empty for one that is not loaded.
    """
    for one, version in zip(found, versions, strict=True):
        if not version and one.plan.deployment.on_request:
            continue
        made = launches.unrecorded(one.play, one.plan)
        launches.record(one.play, one.plan, made, version)
