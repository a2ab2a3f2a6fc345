"""The record of a server and its nodes, taken from what really runs there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spark_cluster.bench.environment import firmware, program_versions, repo_digest
from spark_cluster.bench.expansion import PlannedSetup
from spark_cluster.bench.record import (
    NodeRecord,
    Phase,
    ProcessMemory,
    ReplicaServer,
    Setup,
    VramReading,
)
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import readiness
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.result import Served
from spark_cluster.engine.vram import NodeVram
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node


def setup_of(
    play: Play,
    planned: PlannedSetup,
    served: Served,
    startup_s: float | None = None,
    logs: tuple[str, ...] = (),
) -> Setup:
    """Return the record of a server that has just been verified.

    The command is the container's own, so that it has what `up` computed, such as the share of
    the memory.

    Args:
        startup_s: seconds that it took to load.
        logs: files with what it printed meanwhile, below the folder of the run.
    """
    plan, nodes = served.server, served.deployment.nodes
    running = readiness.container_state(play, SERVER)
    image = served.versions.get("image", "")
    vram = (
        *readings(served.before, "before"),
        *readings(served.peak, "load_peak"),
        *readings(served.now, "ready"),
    )
    return Setup(
        **_of_plan(planned, plan.recipe, plan.launch),
        executor=plan.executor if len(plan.nodes) > 1 else "",
        nodes=tuple(node.name for node in nodes),
        flags=tuple(running.command) or plan.args,
        servers=() if served.deployment.is_one else _replicas(play, served.deployment),
        image_digest=image,
        image_repo_digest=repo_digest(play.session(play.head), image, plan.recipe.image.ref),
        versions={**served.versions, **program_versions(play.session(play.head), plan)},
        vram=vram,
        startup_s=startup_s,
        verified=tuple(plan.recipe.readiness.rungs),
        logs=logs,
    )


def _replicas(play: Play, deployment: Deployment) -> tuple[ReplicaServer, ...]:
    return tuple(
        ReplicaServer(
            nodes=server.node_names,
            flags=tuple(readiness.container_state(play, SERVER, server.node_names[0]).command)
            or server.args,
        )
        for server in deployment.servers
    )


def setup_not_started(
    play: Play, planned: PlannedSetup, recipe: Recipe, logs: tuple[str, ...]
) -> Setup:
    """Return the record of a server that did not start: what it was to be."""
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    return Setup(
        **_of_plan(planned, recipe, of_recipe(recipe, planned.tp)),
        nodes=tuple(node.name for node in nodes[: planned.nodes]),
        logs=logs,
    )


def _of_plan(planned: PlannedSetup, recipe: Recipe, launch: Launch) -> dict[str, Any]:
    """Return what is known of a server before it is started."""
    return {
        "id": planned.id,
        "recipe": recipe.name,
        "model": recipe.model.name,
        "model_revision": launch.revisions.get(recipe.model.name, ""),
        "quantization": launch.quantization or "",
        "kv_cache_dtype": str(launch.args.get("kv-cache-dtype", "auto")),
        "engine": recipe.engine,
        "tp": planned.tp,
        "replicas": planned.replicas,
        "variant": planned.variant_label,
        "recipe_text": text_of(recipe),
    }


def text_of(recipe: Recipe) -> str:
    """Return a recipe as the record has it, with the changes of a variant."""
    return recipe.model_dump_json(indent=1, exclude_defaults=True)


def readings(found: Iterable[NodeVram], phase: Phase) -> tuple[VramReading, ...]:
    """Return readings of GPU memory for the record."""
    return tuple(
        VramReading(
            node=reading.name,
            phase=phase,
            processes=tuple(
                ProcessMemory(pid=p.pid, name=p.name, used_mib=p.used_mib)
                for p in reading.processes
            ),
            available_mib=reading.mem_available_mib,
            total_mib=reading.mem_total_mib,
        )
        for reading in found
    )


def nodes_of(play: Play, served: Served) -> tuple[NodeRecord, ...]:
    """Return the nodes that serve as they are now, with the variables of the engine on each."""
    server = served.server
    chosen = engine(server.engine)
    names = {node.name for node in served.deployment.nodes}
    nodes = [node for node in play.nodes if node.name in names]
    firmwares = play.on_each(nodes, lambda node: firmware(play.session(node), node))
    return tuple(
        NodeRecord(
            name=node.name,
            hardware=node.facts.gpu.name if node.facts.gpu else node.facts.arch,
            driver=node.facts.gpu.driver if node.facts.gpu else "",
            firmware=firmwares[node.name].link,
            bios=firmwares[node.name].bios,
            kernel=node.facts.kernel,
            dgx=node.facts.dgx_version or "",
            mtu=max((i.mtu for i in node.facts.interfaces if i.name in _link(node)), default=None),
            hcas=tuple(hca.name for hca in node.facts.hcas),
            environment=chosen.environment(node, server),
        )
        for node in nodes
    )


def _link(node: Node) -> set[str]:
    """Names of the interfaces of the link."""
    return {link.interface for link in node.links}
