"""Start what a deployment serves: Ray, the engine's servers, and the proxy in front of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from spark_cluster.engine import (
    admission,
    firewall,
    launches,
    readiness,
    runtime,
    supervision,
    vram,
)
from spark_cluster.engine.admission import Admitted
from spark_cluster.engine.deployment import Deployment, Key, Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.link_check import must_be_switched
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import ModelServer, Replica
from spark_cluster.engine.ray import TOKEN_FILE
from spark_cluster.engine.readiness import Again, Member, chains, container_state
from spark_cluster.engine.runtime import absent, ask_health
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.containers import NEEDS
from spark_cluster.node.local_server import stop_command
from spark_cluster.runner.events import Bus
from spark_cluster.runner.play import Applied, Play, RoleCall
from spark_cluster.runner.session import Session


def guard(play: Play, deployment: Deployment) -> RoleCall:
    """Return the firewall, which must be in force before anything of the engine starts.

    One node alone goes on where nftables does not work; the user is told.
    """
    nodes = deployment.nodes
    wanted, alone = deployment.firewall["state"] == "present", len(nodes) == 1
    if not wanted and not alone:
        play.note(firewall.OPEN, warning=True)
    if wanted and alone and play.session(nodes[0]).run(list(firewall.WORKS)).status != 0:
        play.note(firewall.ALONE_AND_OPEN, warning=True, node=nodes[0])
        return play.role("firewall", state="absent")
    return play.role("firewall", **deployment.firewall)


# -- what has no place any more --------------------------------------------------------------------


def taken_away(deployment: Deployment, now: Sequence[Replica]) -> str:
    """Say what the endpoint has now that one recipe takes the place of; empty for nothing."""
    models, count = [one.model for one in now if isinstance(one, ModelServer)], len(now)
    if models and not deployment.endpoint.models:
        return (
            f"the endpoint has {count} models ({', '.join(models)}), and "
            f"{deployment.first.recipe.name} takes their place; `spark-cluster up` without "
            "--recipe serves what the inventory lists"
        )
    if now and deployment.is_one:
        return (
            f"the endpoint has {count} replicas ({', '.join(one.node for one in now)}), and one "
            f"server (--tp {deployment.first.tp}) takes their place; "
            f"`spark-cluster up --replicas {count}` keeps them"
        )
    return ""


def obsolete_programs(deployment: Deployment, now: Sequence[Replica]) -> dict[str, list[str]]:
    """Return by node the programs of ours that have no place in a deployment.

    Args:
        now: what the endpoint has. One server or a replica takes the place of another one by
            itself.
    """
    wanted = {server.key for server in deployment.servers}
    found: dict[str, list[str]] = {}
    for one in now:
        of_several = isinstance(one, ModelServer) or deployment.endpoint.models
        if of_several and (one.node, one.program) not in wanted:
            found.setdefault(one.node, []).append(one.program)
    return found


def end_others(
    play: Play,
    deployment: Deployment,
    found: Sequence[Member],
    obsolete: Mapping[str, Sequence[str]],
) -> None:
    """End what serves anything else, before memory is counted on by any, and wait for it.

    Args:
        obsolete: as `obsolete_programs` gives it.
    """
    kept = {server.program for server in deployment.servers}
    gone = {name for programs in obsolete.values() for name in programs} - kept
    if deployment.endpoint.models:
        gone |= {SERVER, RAY}
    loader = () if deployment.endpoint.models else (play.role("model_loader"),)
    alone = [one.node.name for one in found if _was_joined(one)]
    steps = [
        (play.nodes, (*loader, absent(*sorted(gone))) if gone else ()),
        # A model that moved to another node keeps its name there.
        *(
            ([node], (absent(*sorted(kept.intersection(obsolete.get(node.name, ())))),))
            for node in play.nodes
        ),
        ([n for n in play.nodes if n.name in alone], (absent(SERVER, RAY),)),
    ]
    made = [play.apply(nodes, *what).changed for nodes, what in steps if nodes and any(what)]
    if play.check or not any(made):
        return
    stays = runtime.our_processes(play, [node.name for node in play.nodes], sorted(kept))
    vram.until_free(play.sessions, ignored=stays)


def _was_joined(one: Member) -> bool:
    """Return whether a replica's node serves together with others over Ray now."""
    return not one.server.instance and one.ray is not None and one.ray.status != "absent"


# -- the servers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Starting:
    """A deployment while it is brought up.

    Attributes:
        members: its servers as they were found, in the same order.
        admitted: what the plan gives each server.
        ray_token: of the head's Ray, for a server that stays; None for one without Ray.
        begun: what `readiness.healthy` may start again, of each server that was begun.
    """

    deployment: Deployment
    members: Sequence[Member]
    admitted: Admitted
    ray_token: str | None = field(default=None, repr=False)
    begun: dict[Key, Again] = field(default_factory=dict)


def start(play: Play, now: Starting) -> None:
    """Start the first server of each node that is not as it should be, and the proxy.

    The proxy is there before anything is loaded, so that a server that does not come up keeps none
    of the others from serving. Further servers of a node are started when the one before is ready
    (`ready`); where nothing is waited for, in check mode or with a selection of roles, here.
    """
    deployment = now.deployment
    if now.admitted.new:
        supervision.unload_models(play, now.members)
    proxy = play.role("endpoint", endpoint=deployment.endpoint)
    if deployment.endpoint.models:
        # Its file names the servers: a run that is cut off leaves none that is not known.
        play.apply(deployment.nodes, proxy)
    front = (proxy,) if deployment.is_one else ()
    waits = not (play.check or play.options.selection.partial)

    def on_node(chain: Sequence[Member]) -> None:
        for one in chain[:1] if waits else chain:
            begin_one(now, one, front)

    play.together(*[partial(on_node, chain) for chain in chains(now.members)])
    if deployment.endpoint.replicas:
        play.apply(deployment.nodes, proxy)
    if deployment.endpoint.models and not waits:
        supervision.start_loader(play, deployment)


def begin_one(now: Starting, one: Member, front: Sequence[RoleCall] = ()) -> None:
    """Start a server that is not as it should be; one on request is made only.

    Args:
        front: the proxy of one server, which is started with it.
    """
    play, server, admitted = one.play, one.server, now.admitted
    launches.before_start(play, server, one.running)
    planned = admitted.shares[server.key]
    if server.on_request:
        made = server.starting(share=planned)
        labels = {**made.labels, NEEDS: str(admitted.needs_gib[server.key])}
        play.apply(one.node, play.role("vllm", server=replace(made, labels=labels)))
        return
    same = admission.serves(one.running, server)
    if same:
        end_dead_server(play, server)
    if server.instance:
        share = planned  # next to the others: what is free now is not for it alone
        if not (same or play.check):
            readiness.prepare_memory(play, [one.node])
    else:
        share = admission.share(play, server, one.running, planned)
    ray_token = now.ray_token
    if server.on_ray and not same:  # what served before is gone by now, and its token with it
        ray_token = token(play.session(server.nodes[0]))
    made = server.starting(share=share, ray_token=ray_token)
    begin = partial(_begin, play, made, front)
    started = begin()
    left = not started and not play.options.selection.partial
    now.begun[server.key] = Again(begin if left else None)


def _begin(play: Play, server: Server, front: Sequence[RoleCall]) -> bool:
    """Start a server, the proxy in front of it, and Ray's nodes below it; or end Ray that it does
    not need.

    Returns:
        Whether the server was started; else it ran as it should.
    """
    nodes = server.nodes
    role = play.role("vllm", server=server)
    # Who has the port gives it up before the other takes it.
    order = (role, *front) if server.endpoint.engine_port is not None else (*front, role)
    if server.on_ray and "data-parallel-size" in server.flags:
        start_ray(play, server)  # its ranks are placed on the nodes that Ray has by then
    if server.on_ray:
        return bool(start_ray(play, server, *order))
    # Of several models Ray was ended before.
    ray = () if server.instance else (play.role("ray", server=server),)
    with runtime.explained():
        done = play.apply(nodes, *ray, *order)
        changed = [n for n in nodes if runtime.changed(done.changes(n.name), server.program)]
        if 0 < len(changed) < len(nodes) and not play.check:
            # A rank does not join others that have begun already.
            play.apply(nodes, [runtime.without(server.program, server.recipe.runtime, 5)])
            play.apply(nodes, role)
    return bool(changed)


def end_dead_server(play: Play, server: Server) -> None:
    """End a server whose engine has died, so that it is started again at once.

    Its API goes on for up to 40 s and ends with status 0 (source: make gpu). Who waited for it
    would see it end, and take that for a fault of what was started.
    """
    serving = engine(server.recipe.engine)
    left_out = play.check or play.options.selection.partial  # it may not be started again
    if left_out or serving.died is None:
        return
    life, _ = ask_health(serving, server.endpoint.of_engine, play.session(server.nodes[0]))
    if life.gone:
        play.note("the engine of the running server has died; starting it again")
        end_server(play, server)


def end_server(play: Play, server: Server) -> None:
    """End the server and its ranks, to be started again; Ray stays."""
    play.apply(server.nodes, [runtime.without(server.program, server.recipe.runtime, 5)])
    readiness.prepare_memory(play, server.nodes)


def can_verify(play: Play, deployment: Deployment) -> bool:
    """Return whether there is something to be verified; say it where there is not."""
    left_out = play.options.selection.partial
    if not deployment.is_one and (play.check or left_out):
        why = "not everything was started, so nothing was verified"
    elif play.check:
        why = "check mode: nothing was started, so nothing was verified"
    elif left_out and container_state(play, SERVER).status == "absent":
        why = "the server was left out, so nothing was verified"
    else:
        return True
    play.note(why)
    return False


def announce(play: Play, deployment: Deployment, now: Sequence[Replica]) -> None:
    """Say at each run what the user may not want: an open endpoint, what a recipe gets of this
    machine, what it changes in its image, and what it takes the place of.

    Args:
        now: what the endpoint has.
    """
    serve = play.inventory.serve
    if serve.open and not serve.on_loopback:
        play.note(
            f"no API key (serve.open): anyone who can reach {deployment.endpoint.host} can use the "
            "endpoint; set `serve.api_key` to require one",
            warning=True,
        )
    for server in deployment.recipes:
        recipe, build = server.recipe, server.recipe.image.build
        if recipe.secret_env:
            names = ", ".join(ref.env for ref in recipe.secret_env.values())
            play.note(f"the recipe gives the containers {names} from this machine's environment")
        if build is not None and build.steps:
            steps = ", ".join(step.shown for step in build.steps)
            play.note(f"scripts of the recipe change the image, as root in its build: {steps}")
    if note := taken_away(deployment, now):
        play.note(note)


def prepare(play: Play, deployment: Deployment) -> Deployment:
    """Link, firewall, Docker, caches, start limit where it serves; nothing of ours elsewhere.

    HAProxy comes first: its package is what a node without a network cannot get, and then nothing
    else has been changed.

    Returns:
        The deployment, labelled with whether there is a firewall.
    """
    if deployment.endpoint.engine_port is not None:
        play.apply([node for node in deployment.nodes if node.is_head], "haproxy")
    deployment = prepare_nodes(play, deployment, "start_limit")
    if deployment.idle:
        play.apply(
            deployment.idle,
            absent(SERVER, RAY),
            play.role("endpoint", endpoint=None),
            play.role("firewall", state="absent"),
            play.role("start_limit", state="absent"),
        )
    return deployment


def prepare_nodes(play: Play, deployment: Deployment, *more: str) -> Deployment:
    """Apply link, firewall, Docker, caches and more roles; returns as `prepare`."""
    nodes = deployment.nodes
    link = ("network",) if len(nodes) > 1 else ()
    must_be_switched(nodes, play.session)
    firewall_role = guard(play, deployment)
    docker = ("containers",) if deployment.first.recipe.runtime == "docker" else ()
    made = play.apply(nodes, *link, firewall_role, *docker, "caches", *more)
    if made.changed and not play.check:
        play.refresh(nodes)  # Docker's version, the fabric's addresses
    return deployment.guarded(firewall_role.given["state"])


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
    with runtime.explained():
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
    ray, kind = _started(made, server, RAY), server.recipe.runtime
    head, *workers = server.nodes
    ended = False
    if head.name in ray and (left := [node for node in workers if node.name not in ray]):
        ended = play.apply(left, [runtime.without(RAY, kind, 2)]).changed
    if ray and head.name not in started:
        ended = play.apply(head, [runtime.without(server.program, kind)]).changed or ended
    return ended


def _wait(play: Play, server: Server, *, began: bool) -> None:
    """Wait until all nodes have joined; else stop a server that `began` in this run."""
    ray = server.recipe.ray
    open_to_all = partial(readiness.ray_asks_for_its_token, play, ray.dashboard_port)
    joined = partial(
        readiness.ray_cluster, play, server.size, ray.dashboard_port, ray.join_timeout_s
    )
    try:
        if not began:
            play.together(joined, open_to_all)
            return
        joined()
    except SparkClusterError:
        if began:  # it would wait for the node that is missing, and be started again and again
            play.session(server.nodes[0]).run(stop_command(server.program, server.recipe.runtime))
        raise
    open_to_all()


def start_ray_alone(play: Play, server: Server, labels: Mapping[str, str]) -> None:
    """Start Ray on all nodes of a server, without the server itself, its model and its secrets.

    Args:
        labels: more labels of the containers.
    """
    start_ray(play, _ray_alone(_with_token(play, server), labels))


def ray_would_restart(play: Play, server: Server, labels: Mapping[str, str] | None) -> bool:
    """Return whether a start of Ray would restart one that runs, and change nothing.

    Args:
        labels: more labels of a Ray without a model; None for the Ray under the server.
    """
    options = replace(play.options, check=True)
    checking = Play(play.inventory, play.project, play.connections, Bus(), options)
    wanted = _with_token(play, server)
    role = checking.role("ray", server=wanted if labels is None else _ray_alone(wanted, labels))
    try:
        made = checking.apply(server.nodes, role)
    except SparkClusterError as error:
        error.told = False  # nobody sees the events of this play
        raise
    return any(runtime.changed(made.changes(node.name), RAY) for node in server.nodes)


def _with_token(play: Play, server: Server) -> Server:
    """Return a server as it starts, with the token of its Ray."""
    return server.starting(share=None, ray_token=token(play.session(server.nodes[0])))


def _ray_alone(server: Server, labels: Mapping[str, str]) -> Server:
    """Return a server as far as Ray needs it."""
    return replace(
        server,
        model_path="",
        mounts=tuple(mount.volume for mount in server.recipe.mounts),
        secret_env={},
        labels={**server.labels, **labels},
    )


def token(session: Session) -> str:
    """The token of the head's Ray, or a new one when there is no Ray yet.

    It is made of 32 random bytes and lives as long as the cluster: `down` removes it.
    """
    return (session.read_file(TOKEN_FILE) or "").strip() or secrets.token_hex(32)
