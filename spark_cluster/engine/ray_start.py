"""Start Ray over the fabric: under a server of several nodes, or alone for jobs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

from spark_cluster.engine import logs, readiness, runtime
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import TOKEN_FILE
from spark_cluster.engine.runtime import RUNTIMES
from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.events import Bus
from spark_cluster.runner.play import Applied, Play, RoleCall
from spark_cluster.runner.session import Session


def start_ray(play: Play, server: Server, *beside: RoleCall) -> set[str]:
    """Start Ray on all nodes at once, with what is next to it, and wait until all have joined.

    A server next to it imports its modules meanwhile; vLLM's waits for Ray's nodes by itself.

    Args:
        beside: roles of the server and its proxy; none for Ray alone.

    Returns:
        The nodes on which the server's program was started.

    Raises:
        Failed: a program does not start, or a node of Ray ends again and again.
        VerificationFailed: a node does not join in time; with its name. A server that was started
            is stopped.
    """
    roles = (play.role("ray", server=server), *beside)
    with logs.explained():
        made = play.apply(server.nodes, *roles)
        started = _started(made, server, server.program)
        if not play.check and _end_what_was_left(play, server, made, started):
            made = play.apply(server.nodes, *roles)
            started |= _started(made, server, server.program)
    if server.on_ray and not play.check:
        _wait(play, server, began=server.nodes[0].name in started)
    return started


def _started(made: Applied, server: Server, program: str) -> set[str]:
    """Return the nodes on which a program was started, or would be."""
    return {name for name in server.node_names if runtime.changed(made.changes(name), program)}


def _end_what_was_left(play: Play, server: Server, made: Applied, started: set[str]) -> bool:
    """End what belongs to a Ray that was replaced: a worker of an earlier head does not follow to a
    new one, and a server does not find a new node. Return whether there was any."""
    ray, runs = _started(made, server, RAY), RUNTIMES[server.runtime]
    head, *workers = server.nodes
    ended = False
    if head.name in ray and (left := [node for node in workers if node.name not in ray]):
        ended = play.apply(left, [runs.absent(RAY, 2)]).changed
    if ray and head.name not in started:
        ended = play.apply(head, [runs.absent(server.program)]).changed or ended
    return ended


def _wait(play: Play, server: Server, *, began: bool) -> None:
    """Wait until all nodes have joined; else stop a server that `began` in this run."""
    ray = server.ray
    try:
        readiness.ray_cluster(play, server.size, ray.dashboard_port, ray.join_timeout_s)
    except SparkClusterError:
        if began:  # it would wait for the node that is missing, and be started again and again
            play.session(server.nodes[0]).run(RUNTIMES[server.runtime].stop(server.program))
        raise
    readiness.ray_asks_for_its_token(play, ray.dashboard_port)


def start_ray_alone(
    play: Play, server: Server, guarded: str, labels: Mapping[str, str] | None = None
) -> None:
    """Start Ray on all nodes of a server, without the server itself, its model and its secrets.

    Args:
        guarded: whether there is a firewall, for the containers' label.
        labels: more labels of the containers.
    """
    start_ray(play, _ray_alone(play, server, guarded, labels or {}))


def ray_would_restart(
    play: Play, server: Server, guarded: str, labels: Mapping[str, str] | None
) -> bool:
    """Return whether a start of Ray would restart one that runs, and change nothing.

    Args:
        guarded: whether there is a firewall, for the containers' label.
        labels: more labels of a Ray without a model; None for the Ray under the server.
    """
    options = replace(play.options, check=True)
    checking = Play(play.inventory, play.project, play.connections, Bus(), options)
    wanted = (
        server.starting(share=None, guarded=guarded, ray_token=token(play.session(server.nodes[0])))
        if labels is None
        else _ray_alone(play, server, guarded, labels)
    )
    role = checking.role("ray", server=wanted)
    made = checking.apply(server.nodes, role)
    return any(runtime.changed(made.changes(node.name), RAY) for node in server.nodes)


def _ray_alone(play: Play, server: Server, guarded: str, labels: Mapping[str, str]) -> Server:
    """Return a server as far as Ray needs it."""
    ray_token = token(play.session(server.nodes[0]))
    whole = server.starting(share=None, guarded=guarded, ray_token=ray_token)
    mounts = tuple(mount.volume for mount in server.recipe.mounts)
    labels = {**whole.labels, **labels}
    return replace(whole, model_path="", mounts=mounts, secret_env={}, labels=labels)


def token(session: Session) -> str:
    """The token of the head's Ray, or a new one when there is no Ray yet.

    It is made of 32 random bytes and lives as long as the cluster: `down` removes it.
    """
    found = session.request("gather", files={"token": TOKEN_FILE})["files"]["token"]
    return str(found).strip() if found else secrets.token_hex(32)
