"""Replicas: a server on each of several nodes, alone, behind the one endpoint on the head.

The head's replica listens on its loopback, the others on their address on the fabric, which the
firewall opens to the other serving nodes only. Each has its own share of the memory, and is
verified by itself: what the proxy answers says nothing of the replica that it did not ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spark_cluster.config.inventory import Inventory
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import Refused, SparkClusterError, VerificationFailed
from spark_cluster.inference import runtime
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.launch_records import LaunchRecord
from spark_cluster.runner.play import Play
from spark_cluster.serving import admission, caches, launches, load_progress, readiness, rungs, vram
from spark_cluster.serving.endpoint import LABEL, Endpoint
from spark_cluster.serving.nodes import groups
from spark_cluster.serving.plan import ServePlan, resolve
from spark_cluster.serving.proxy import DESCRIPTION, Replica
from spark_cluster.topology import Node

BEHIND_PROXY_S = 30.0
"""Seconds in which the proxy must see a replica whose server is healthy; it looks each second."""

NO_LINK = "add the cable, then `spark-cluster provision`; `spark-cluster doctor --only link` checks"


@dataclass(frozen=True)
class Group:
    """The plan of what is behind an endpoint: one server, or several replicas.

    Attributes:
        whole: what all share: every serving node, the endpoint, image and models, the firewall.
        parts: the replicas' own plans, the head's first; their endpoint is the engine's own. Of
            one server over all of the nodes the whole itself.
    """

    whole: ServePlan
    parts: tuple[ServePlan, ...]

    @property
    def is_one(self) -> bool:
        """True for one server over all of the nodes."""
        return self.parts[0] is self.whole


@dataclass(frozen=True)
class Member:
    """A server while it is brought up.

    Attributes:
        play: of a replica over its node alone.
        running: its server as it was found.
        ray: Ray on a replica's node as it was found.
    """

    play: Play
    plan: ServePlan
    running: ContainerState
    ray: ContainerState | None = None

    @property
    def node(self) -> Node:
        """Its node."""
        return self.play.head


def behind(play: Play) -> str | None:
    """Return what the proxy's own file says of the endpoint; None without a proxy."""
    answer = play.session(play.head).request("gather", files={"endpoint": DESCRIPTION})
    found: str | None = answer["files"]["endpoint"]
    return found


def taken_away(now: Sequence[Replica], tp: int) -> str:
    """Say that one server takes the place of several; empty where there are none."""
    if not now:
        return ""
    nodes = ", ".join(replica.node for replica in now)
    return (
        f"the endpoint has {len(now)} replicas ({nodes}), and one server (--tp {tp}) takes their "
        f"place; `up --replicas {len(now)}` keeps them"
    )


def group_of(whole: ServePlan, inventory: Inventory) -> Group:
    """Return one server, or the replicas that the whole plan has behind its endpoint."""
    behind = whole.endpoint.replicas
    if not behind:
        return Group(whole, (whole,))
    parts = [part(whole, inventory, *pair) for pair in zip(whole.nodes, behind, strict=True)]
    return Group(whole, tuple(parts))


def resolve_group(
    recipe: Recipe, inventory: Inventory, nodes: Sequence[Node], count: int, tp: int = 1
) -> Group:
    """Resolve what serves a recipe: one server over `tp` nodes, or replicas on one node each.

    Args:
        count: of servers.

    Raises:
        Refused: there are too few nodes, or of replicas the recipe needs several for one server, or
            there is no link between them.
        SparkClusterError: as `resolve`.
    """
    if count == 1:
        return group_of(resolve(recipe, inventory, nodes, tp), inventory)
    if recipe.nodes_for(1) != 1:
        raise Refused(
            f"recipe {recipe.name} takes {recipe.nodes_for(1)} nodes for one server, and a replica "
            "has one",
            hint="pipeline_parallel or data_parallel is the reason; serve it without --replicas",
        )
    head_first = sorted(nodes, key=lambda node: not node.is_head)
    alone = resolve(recipe, inventory, head_first, 1)
    names = [name for one in groups([n.name for n in head_first], 1, count) for name in one]
    serving, idle = head_first[:count], head_first[count:]
    port = inventory.serve.engine_port
    if port == inventory.serve.port:
        raise Refused(
            f"serve.engine_port and serve.port are both {port}, and the proxy in front of the "
            "replicas needs one of its own",
            where=str(inventory.path),
            hint="give serve.engine_port another number",
        )
    behind = tuple(Replica(node.name, address_of(node), port) for node in serving)
    guarded = alone.firewall
    if guarded["state"] == "present":
        guarded = {**guarded, "peers": tuple(names), "ports": (*guarded["ports"], (port, port))}
    root = caches.root_of_all(inventory.nodes[node.name] for node in serving)
    whole = replace(
        alone,
        nodes=tuple(serving),
        idle=tuple(idle),
        deployment=replace(alone.deployment, cache_root=root),
        endpoint=replace(alone.endpoint, engine_port=port, replicas=behind),
        firewall=guarded,
    )
    return group_of(whole, inventory)


def address_of(node: Node) -> str:
    """Return where a server behind the proxy listens.

    Raises:
        Refused: the node has no address on the fabric.
    """
    if node.is_head:
        return LOOPBACK
    if node.fabric_ip is None:
        raise Refused(
            f"{node.name} has no link to the head: the proxy reaches servers over it only, where "
            "no one else is",
            hint=NO_LINK,
        )
    return node.fabric_ip


def part(whole: ServePlan, inventory: Inventory, node: Node, behind: Replica) -> ServePlan:
    """Return the plan of one server behind the proxy, which knows nothing of the others."""
    endpoint = Endpoint(behind.address, behind.port, whole.endpoint.model)
    deployment = replace(
        whole.deployment,
        nodes=(node.name,),
        host=behind.address,
        port=behind.port,
        cache_root=caches.root_on(inventory.nodes[node.name]),
        labels={**whole.deployment.labels, LABEL: endpoint.engine_url},
    )
    return replace(whole, nodes=(node,), idle=(), endpoint=endpoint, deployment=deployment)


def members(play: Play, group: Group) -> list[Member]:
    """Look at each server, and at Ray on a replica's node: what runs there of ours."""
    if group.is_one:
        return [Member(play, group.whole, readiness.container_state(play, SERVER))]

    def look(plan: ServePlan) -> Member:
        part = play.part(plan.deployment.nodes)
        states = [readiness.container_state(part, name) for name in (plan.server, RAY)]
        return Member(part, plan, *states)

    return play.together(*[partial(look, plan) for plan in group.parts])


def with_plans(found: Sequence[Member], group: Group) -> list[Member]:
    """Return the members with the parts of another group of the same nodes."""
    return [replace(one, plan=plan) for one, plan in zip(found, group.parts, strict=True)]


def must_work(
    found: Sequence[Member],
    there: Mapping[str, float],
    *,
    force: bool,
    offline: bool = False,
    ended: Sequence[str] = (),
) -> None:
    """Refuse what cannot work on one of the nodes, unless forced; each is asked for its memory.

    Of replicas what is said names the node.

    Args:
        there: as `admission.must_work` takes it.
        offline: the hub is not asked for the model's shape.
        ended: as `admission.must_work` takes it.

    Raises:
        DoesNotFit: with the node.
        Refused: the recipe lacks what its source needed.
    """
    several = len(found) > 1
    for one in found:
        if note := admission.overrides_changed(one.running, one.plan):
            one.play.note(note, node=one.node if several else None)
        try:
            admission.must_work(
                one.play,
                one.plan,
                one.running,
                there,
                force=force,
                offline=offline,
                ended=ended,
            )
        except SparkClusterError as error:
            error.where = error.where or (one.node.name if several else "")
            raise


def start(play: Play, group: Group, found: Sequence[Member], guarded: str) -> list[readiness.Again]:
    """Start each replica that is not as it should be, then the proxy in front of all.

    The proxy is there before they are loaded, so that one that does not come up keeps none of the
    others from serving.

    Args:
        guarded: whether there is a firewall, for the containers' label.

    Returns:
        For each, what `healthy` may start again.
    """
    _end_others(play, found)

    def start_one(one: Member) -> readiness.Again:
        launches.before_start(one.play, one.plan, one.running)
        share = admission.share(one.play, one.plan, one.running)
        made = one.plan.starting(share=share, guarded=guarded, ray_token=None)
        role = partial(one.play.role, deployment=made)
        begin = partial(one.play.apply, one.node, role("ray"), role("vllm"))
        started = runtime.changed(begin().changes(one.node.name), SERVER)
        return readiness.Again(None if started else begin)

    again: list[readiness.Again] = play.together(*[partial(start_one, one) for one in found])
    nodes = group.whole.nodes
    play.apply(nodes, play.role("endpoint", **group.whole.endpoint.proxy_settings()))
    return again


def _end_others(play: Play, found: Sequence[Member]) -> None:
    """End what was started for several nodes together, before memory is counted on any."""
    stale = [one for one in found if one.ray is not None and one.ray.status != "absent"]
    if not stale or play.check:
        return
    nodes = [one.node for one in stale]
    play.apply(nodes, runtime.absent(SERVER, stop_timeout_s=30))
    play.apply(nodes, runtime.absent(RAY, stop_timeout_s=2))
    vram.until_free({node.name: play.session(node) for node in nodes})


def healthy(
    play: Play, group: Group, found: Sequence[Member], again: Sequence[readiness.Again]
) -> list[vram.NodeVram]:
    """Wait until every server is healthy, and the proxy of replicas sees one of them.

    Args:
        again: as `start` returns it.

    Returns:
        The largest VRAM of each node seen meanwhile.

    Raises:
        Failed: a server or a rank ended; with the first real error of its log.
        VerificationFailed: one is not healthy in time.
    """
    whole, limit = group.whole, group.whole.recipe.ready_timeout_s

    def wait(one: Member, begin: readiness.Again) -> list[vram.NodeVram]:
        plan = one.plan
        return readiness.healthy(
            one.play,
            plan.endpoint,
            whole.engine,
            limit,
            plan.ranks,
            nodes=plan.nodes,
            again=begin,
            look=partial(load_progress.look, one.play, plan.deployment),
        )

    peaks = play.together(*[partial(wait, *pair) for pair in zip(found, again, strict=True)])
    if not group.is_one:
        readiness.healthy(play, whole.endpoint, whole.engine, BEHIND_PROXY_S)
    return [reading for peak in peaks for reading in peak]


def verify(play: Play, group: Group, found: Sequence[Member]) -> str:
    """Climb the recipe's rungs on every server, and ask the proxy of replicas as a user would.

    Returns:
        The answer of the head's server.

    Raises:
        VerificationFailed: at the first rung that does not hold.
    """
    answers: list[str] = play.together(*[partial(rungs.climb, one.play, one.plan) for one in found])
    if group.is_one:
        return answers[0]
    whole = group.whole
    asked = whole.endpoint.request(play.session(play.head), whole.engine.models)
    if asked.status != 200:
        raise VerificationFailed(
            f"each replica answers, but the endpoint {whole.endpoint.url} does not: status "
            f"{asked.status} {asked.reason}".rstrip(),
            where=play.head.name,
            hint="journalctl -u spark-cluster-endpoint there says what the proxy does",
        )
    return answers[0]


def unrecorded(play: Play, found: Sequence[Member]) -> list[LaunchRecord | None]:
    """Return the record of each server's launch; None for one that its node has already."""
    return play.together(*[partial(launches.unrecorded, one.play, one.plan) for one in found])


def record(
    play: Play, found: Sequence[Member], made: Sequence[LaunchRecord | None], engine_version: str
) -> None:
    """Write the record of each launch that has none on its node."""
    play.together(
        *[
            partial(launches.record, one.play, one.plan, new, engine_version)
            for one, new in zip(found, made, strict=True)
        ]
    )
