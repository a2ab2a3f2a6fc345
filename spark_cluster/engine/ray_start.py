"""Start Ray over the fabric: under a server of several nodes, or alone for jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spark_cluster.engine import logs, readiness, runtime
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.ray import token
from spark_cluster.engine.runtime import RUNTIMES
from spark_cluster.runner.events import Bus
from spark_cluster.runner.play import Play


def start_ray_alone(
    play: Play, server: Server, guarded: str, labels: Mapping[str, str] | None = None
) -> None:
    """Start Ray on all nodes of a plan, without the server, its model and its secrets.

    Args:
        guarded: whether there is a firewall, for the containers' label.
        labels: more labels of the containers.
    """
    start_ray(play, _ray_alone(play, server, guarded, labels or {}))


def ray_would_restart(play: Play, server: Server, guarded: str, labels: Mapping[str, str]) -> bool:
    """Return whether `start_ray_alone` would start a Ray that runs again, and change nothing."""
    options = replace(play.options, check=True)
    checking = Play(play.inventory, play.project, play.connections, Bus(), options)
    role = checking.role("ray", server=_ray_alone(play, server, guarded, labels))
    made = checking.apply(server.nodes, role)
    return any(runtime.changed(made.changes(node.name), RAY) for node in server.nodes)


def _ray_alone(play: Play, server: Server, guarded: str, labels: Mapping[str, str]) -> Server:
    """Return a plan's deployment as far as Ray needs it."""
    ray_token = token(play.session(server.nodes[0]))
    whole = server.starting(share=None, guarded=guarded, ray_token=ray_token)
    mounts = tuple(mount.volume for mount in server.recipe.mounts)
    labels = {**whole.labels, **labels}
    return replace(whole, model_path="", mounts=mounts, secret_env={}, labels=labels)


def start_ray(play: Play, server: Server) -> None:
    """Start Ray where a server needs it, and wait for all nodes; end it elsewhere."""
    with logs.explained():
        changed = _ray_nodes(play, server)
    if changed and not play.check:
        # A server that was started with another Ray cluster never finds this one.
        play.apply(server.nodes[0], [RUNTIMES[server.runtime].absent(SERVER)])
    if server.on_ray and not play.check:
        ray = server.ray
        readiness.ray_cluster(play, server.size, ray.dashboard_port, ray.join_timeout_s)
        readiness.ray_asks_for_its_token(play, ray.dashboard_port)


def _ray_nodes(play: Play, server: Server) -> bool:
    """Apply the head before the workers; return whether anything was changed."""
    head, *workers = server.nodes
    role = play.role("ray", server=server)
    changed = runtime.changed(play.apply(head, role).changes(head.name), RAY)
    if changed and not play.check and workers:
        # Workers of an earlier head do not follow to a new one.
        play.apply(workers, [RUNTIMES[server.runtime].absent(RAY, 2)])
    return play.apply(workers, role).changed or changed
