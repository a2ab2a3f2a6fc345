"""From any state to a verified vLLM endpoint."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from spark_cluster.cluster import Spark
from spark_cluster.engine.connections import ask_secret
from spark_cluster.engine.play import Play, RoleCall
from spark_cluster.errors import Failed, Refused
from spark_cluster.planning.memory import LOWEST, utilization
from spark_cluster.planning.nodes import serving
from spark_cluster.recipe import Recipe
from spark_cluster.resources import Container
from spark_cluster.serving import readiness, vram
from spark_cluster.serving.engine import RAY, SERVER
from spark_cluster.serving.readiness import Endpoint
from spark_cluster.serving.result import Served, versions


def main(play: Play, *, recipe: Recipe, tp: int) -> Served | None:
    """Serve `recipe` over `tp` nodes; None where nothing can be verified (check mode, --tags)."""
    servers, idle = plan_nodes(play, recipe, tp)
    endpoint = endpoint_of(play, recipe)
    before = [] if play.check else vram.sample({n.name: play.session(n) for n in play.nodes})
    with play.stage("prepare"):
        link = ("network",) if tp > 1 else ()
        made = play.apply(servers, *link, "containers", "caches")
        if made.changed and not play.check:
            play.refresh(servers)  # Docker's version, the fabric's addresses
        if idle:
            play.apply(idle, [Container(SERVER, state="absent"), Container(RAY, state="absent")])
    with play.stage("fetch"):
        fetch(play, servers, recipe)
    share = memory_share(play, recipe, servers)
    with play.stage("start"):
        start(play, servers, recipe, endpoint, share)
    if play.check:
        play.note("check mode: nothing was started, so nothing was verified")
        return None
    left_out = play.options.selection.partial
    if left_out and readiness.container_state(play, SERVER).status == "absent":
        play.note("the server was left out, so nothing was verified")
        return None
    with play.stage("load"):
        peak = readiness.healthy(play, endpoint, recipe.ready_timeout_s)
    with play.stage("verify"):
        answer = readiness.ask(play, endpoint, recipe.probe)
        now = vram.sample({n.name: play.session(n) for n in play.nodes})
        peak = vram.peak(peak, now)
        found = versions(play, endpoint, recipe.ray.dashboard_port if tp > 1 else None)
    return Served(endpoint, recipe.name, tp, answer, before, peak, now, found)


def plan_nodes(play: Play, recipe: Recipe, tp: int) -> tuple[list[Spark], list[Spark]]:
    """Who serves and who does not."""
    recipe.args_for(tp)  # refuses a size that the recipe does not do
    return serving(play.nodes, tp)


def endpoint_of(play: Play, recipe: Recipe) -> Endpoint:
    """Where the server binds, as the inventory says."""
    serve = play.inventory.serve
    host = "127.0.0.1" if serve.bind == "loopback" else management_ip(play.head)
    key = serve.api_key.read("the API key", ask_secret()) if serve.api_key else None
    return Endpoint(host, serve.port, recipe.model.served_name, key)


def management_ip(node: Spark) -> str:
    """The node's own IP address that its inventory address means."""
    own = {str(a.ip) for i in node.facts.interfaces for a in i.addresses}
    if node.address in own:
        return node.address
    try:
        known = {str(info[4][0]) for info in socket.getaddrinfo(node.address, None)}
    except OSError:
        known = set()
    if own & known:
        return sorted(own & known)[0]
    raise Failed(
        f"{node.address} is none of the node's own addresses ({', '.join(sorted(own))})",
        where=node.name,
        hint="`serve.bind: management` needs an IP address as the head's `address`",
    )


def fetch(play: Play, nodes: list[Spark], recipe: Recipe) -> None:
    """Image and model; side by side when the model does not need the image to be downloaded."""
    model, image = recipe.model, recipe.image
    images = play.role("images", ref=image.ref, digest=image.digest, archive=image.archive)
    models = play.role(
        "models",
        name=model.name,
        revision=model.revision,
        source=model.source,
        path=model.node_path,
        directory=model.directory,
        image=image.reference,
    )
    if model.source == "hub":
        play.apply(nodes, images, models)
    else:
        play.together(lambda: play.apply(nodes, images), lambda: play.apply(nodes, models))


def memory_share(play: Play, recipe: Recipe, nodes: list[Spark]) -> float | None:
    """The --gpu-memory-utilization for all ranks, from the node with the least room.

    None when the recipe says how large the KV cache is. A server that runs keeps its share: the
    memory that it holds itself is no reason to start it anew.
    """
    if recipe.gpu_memory_utilization is not None or "kv-cache-memory-bytes" in recipe.engine_args:
        return None
    running = readiness.container_state(play, SERVER)
    if running.status == "running" and "--gpu-memory-utilization" in running.command:
        at = running.command.index("--gpu-memory-utilization")
        return float(running.command[at + 1])
    if not play.check:  # page cache is not free memory to CUDA
        play.on_each(nodes, partial(drop_caches, play))
        play.refresh(nodes)
    known = {node.name: node for node in play.nodes}
    shares = {n.name: utilization(known[n.name].facts.memory) for n in nodes}
    name, share = min(shares.items(), key=lambda item: item[1])
    if share < LOWEST:
        memory = known[name].facts.memory
        raise Refused(
            f"only {memory.available_kib / 2**20:.1f} of {memory.total_kib / 2**20:.1f} GiB are "
            "available",
            where=name,
            hint="spark-cluster vram shows who holds it; spark-cluster down ends what we started",
        )

    return share


def drop_caches(play: Play, node: Spark) -> None:
    """Give the page cache back, as vLLM's start gate does not count it as free."""
    play.session(node).run(["sync"], timeout=300)
    play.session(node).run(["sysctl", "-q", "-w", "vm.drop_caches=3"], timeout=300)


def start(
    play: Play, nodes: list[Spark], recipe: Recipe, endpoint: Endpoint, share: float | None
) -> None:
    """Ray on all nodes, head first; then the server."""
    tp = len(nodes)
    common = engine_settings(recipe, tp, endpoint)
    server = play.role(
        "vllm",
        **common,
        args=tuple(recipe.args_for(tp, share)),
        host=endpoint.host,
        port=endpoint.port,
        ray_port=recipe.ray.port,
        api_key=endpoint.api_key,
    )
    options = recipe.ray.model_dump(exclude={"join_timeout_s"})
    anew = ray(play, nodes, play.role("ray", **common, **options))
    if anew and not play.check:
        # A server that was started with another Ray cluster never finds this one.
        play.apply(nodes[0], [Container(SERVER, state="absent")])
    if tp > 1 and not play.check:
        readiness.ray_cluster(play, tp, recipe.ray.dashboard_port, recipe.ray.join_timeout_s)
    play.apply(nodes, server)


def ray(play: Play, nodes: list[Spark], role: RoleCall) -> bool:
    """The head before the workers; whether anything was changed."""
    head = play.apply(nodes[0], role)
    anew = f"Container:{RAY}" in head.changes(nodes[0].name)
    if anew and not play.check and nodes[1:]:
        # Workers of an earlier head do not follow to a new one.
        play.apply(nodes[1:], [Container(RAY, state="absent", stop_timeout_s=2)])
    workers = play.apply(nodes[1:], role)
    return anew or workers.changed


def engine_settings(recipe: Recipe, tp: int, endpoint: Endpoint) -> dict[str, Any]:
    """What the roles ray and vllm share."""
    return {
        "image": recipe.image.reference,
        "model_path": recipe.model.node_path,
        "tp": tp,
        "mounts": tuple(mount.volume for mount in recipe.mounts),
        "env": dict(recipe.env),
        "labels": {
            "spark-cluster.recipe": recipe.name,
            "spark-cluster.model": endpoint.model,
            "spark-cluster.tp": str(tp),
            "spark-cluster.endpoint": endpoint.url,
            "spark-cluster.dashboard": str(recipe.ray.dashboard_port),
        },
    }
