"""Start what a plan serves: Ray, then the engine, then the proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from spark_cluster.inference import runtime
from spark_cluster.inference.deployment import Deployment
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.inference.ray import token
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import judge
from spark_cluster.runner.events import Bus
from spark_cluster.runner.play import Play, RoleCall
from spark_cluster.serving import admission, firewall, launches, load_guard, logs, readiness
from spark_cluster.serving.plan import ServePlan
from spark_cluster.topology import Node


def guard(play: Play, plan: ServePlan) -> RoleCall:
    """Return the firewall, which must be in force before anything of the engine starts.

    One node alone goes on where nftables does not work; the user is told.
    """
    wanted, alone = plan.firewall["state"] == "present", len(plan.nodes) == 1
    if not wanted and not alone:
        play.note(firewall.OPEN, warning=True)
    if wanted and alone and play.session(plan.nodes[0]).run(list(firewall.WORKS)).status != 0:
        play.note(firewall.ALONE_AND_OPEN, warning=True, node=plan.nodes[0])
        return play.role("firewall", state="absent")
    return play.role("firewall", **plan.firewall)


def bring_up(play: Play, plan: ServePlan, running: ContainerState, guarded: str) -> readiness.Again:
    """Start one server over all of its nodes, with the share of their memory that is safe now.

    Args:
        running: the server as it was found.
        guarded: whether there is a firewall, for the containers' label.

    Returns:
        What `readiness.healthy` may start again.
    """
    launches.before_start(play, plan, running)
    share = admission.share(play, plan, running)
    if running.status == "running":
        end_dead_server(play, plan)
    begin = partial(start, play, plan, share, guarded)
    started = begin()
    left = not started and not play.options.selection.partial
    return readiness.Again(begin if left else None)


def start(play: Play, plan: ServePlan, share: float | None, guarded: str) -> bool:
    """Start Ray on all nodes, head first; then the server, and the proxy in front of it.

    Args:
        share: the --gpu-memory-utilization that was computed; None keeps the recipe's.
        guarded: whether there is a firewall, for the containers' label.

    Returns:
        Whether the server was started; else it ran as it should.
    """
    nodes = plan.nodes
    deployment = _with_ray(play, plan, share, guarded)
    _start_ray(play, nodes, deployment)
    with logs.explained():
        return _start_server(play, plan, deployment)


def _with_ray(play: Play, plan: ServePlan, share: float | None, guarded: str) -> Deployment:
    """Return a plan's deployment with the token of its Ray, where it needs one."""
    ray_token = token(play.session(plan.nodes[0])) if plan.deployment.on_ray else None
    return plan.starting(share=share, guarded=guarded, ray_token=ray_token)


def _start_server(play: Play, plan: ServePlan, deployment: Deployment) -> bool:
    """Start the server and the proxy in front of it; return whether the server was started."""
    nodes = plan.nodes
    server = play.role("vllm", deployment=deployment)
    proxy = play.role("endpoint", **plan.endpoint.proxy_settings())
    # Who has the port gives it up before the other takes it.
    order = (server, proxy) if plan.endpoint.engine_port is not None else (proxy, server)
    made = play.apply(nodes, *order)
    changed = [node for node in nodes if runtime.changed(made.changes(node.name), SERVER)]
    if deployment.executor == "mp" and 0 < len(changed) < len(plan.nodes) and not play.check:
        # A rank does not join others that have begun already.
        play.apply(nodes, [_runtime(deployment).absent(SERVER, 5)])
        play.apply(nodes, server)
    return bool(changed)


def end_dead_server(play: Play, plan: ServePlan) -> None:
    """End a server whose engine has died, so that it is started again at once.

    Its API goes on for up to 40 s and ends with status 0 (source: make gpu). Who waited for it
    would see it end, and take that for a fault of what was started.
    """
    serving = plan.engine
    left_out = play.check or play.options.selection.partial  # it may not be started again
    if left_out or serving.died is None:
        return
    health = plan.endpoint.of_engine.health(play.session(plan.nodes[0]), serving.health)
    if judge(None, health.status, died=serving.died).gone:
        play.note("the engine of the server that runs has died; it is started again")
        end_server(play, plan)


def end_server(play: Play, plan: ServePlan) -> None:
    """End the server and its ranks, to be started again; Ray stays."""
    play.apply(plan.nodes, [_runtime(plan.deployment).absent(plan.server, 5)])
    load_guard.prepare(play, plan.nodes)


def start_ray_alone(
    play: Play, plan: ServePlan, guarded: str, labels: Mapping[str, str] | None = None
) -> None:
    """Start Ray on all nodes of a plan, without the server, its model and its secrets.

    Args:
        guarded: whether there is a firewall, for the containers' label.
        labels: more labels of the containers.
    """
    _start_ray(play, plan.nodes, _ray_alone(play, plan, guarded, labels or {}))


def ray_would_restart(
    play: Play, plan: ServePlan, guarded: str, labels: Mapping[str, str] | None
) -> bool:
    """Return whether a start of Ray would restart one that runs, and change nothing.

    Args:
        guarded: whether there is a firewall, for the containers' label.
        labels: more labels of a Ray without a model; None for the Ray under the plan's server.
    """
    options = replace(play.options, check=True)
    checking = Play(play.inventory, play.project, play.connections, Bus(), options)
    wanted = (
        _with_ray(play, plan, None, guarded)
        if labels is None
        else _ray_alone(play, plan, guarded, labels)
    )
    role = checking.role("ray", deployment=wanted)
    made = checking.apply(plan.nodes, role)
    return any(runtime.changed(made.changes(node.name), RAY) for node in plan.nodes)


def _ray_alone(play: Play, plan: ServePlan, guarded: str, labels: Mapping[str, str]) -> Deployment:
    """Return a plan's deployment as far as Ray needs it."""
    ray_token = token(play.session(plan.nodes[0]))
    whole = plan.starting(share=None, guarded=guarded, ray_token=ray_token)
    mounts = tuple(mount.volume for mount in plan.recipe.mounts)
    labels = {**whole.labels, **labels}
    return replace(whole, model_path="", mounts=mounts, secret_env={}, labels=labels)


def _start_ray(play: Play, nodes: Sequence[Node], deployment: Deployment) -> None:
    """Start Ray where the deployment needs it, and wait for all nodes; end it elsewhere."""
    with logs.explained():
        changed = _ray_nodes(play, nodes, deployment)
    if changed and not play.check:
        # A server that was started with another Ray cluster never finds this one.
        play.apply(nodes[0], [_runtime(deployment).absent(SERVER)])
    if deployment.on_ray and not play.check:
        ray = deployment.ray
        readiness.ray_cluster(play, deployment.size, ray.dashboard_port, ray.join_timeout_s)
        readiness.ray_asks_for_its_token(play, ray.dashboard_port)


def _runtime(deployment: Deployment) -> runtime.Runtime:
    return runtime.RUNTIMES[deployment.runtime]


def _ray_nodes(play: Play, nodes: Sequence[Node], deployment: Deployment) -> bool:
    """Apply the head before the workers; return whether anything was changed."""
    role = play.role("ray", deployment=deployment)
    head = play.apply(nodes[0], role)
    changed = runtime.changed(head.changes(nodes[0].name), RAY)
    if changed and not play.check and nodes[1:]:
        # Workers of an earlier head do not follow to a new one.
        play.apply(nodes[1:], [_runtime(deployment).absent(RAY, 2)])
    workers = play.apply(nodes[1:], role)
    return changed or workers.changed
