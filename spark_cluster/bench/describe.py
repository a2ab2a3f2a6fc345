"""The record of a server and its nodes, taken from what really runs there, and of their state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from spark_cluster.bench.expansion import PlannedSetup
from spark_cluster.bench.record import (
    NodeRecord,
    Phase,
    ProcessMemory,
    ReplicaServer,
    Setup,
    VramReading,
    number,
    printable,
)
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.result import Served
from spark_cluster.engine.vram import NodeVram
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.dockerd import image_question, parse_images
from spark_cluster.resources.image import without_tag
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

ASK_S = 30.0
"""Seconds that an answer may take."""

LONGEST = 200
"""Characters of an answer that are kept."""

TRIES = 9

ROUND_TRIP = "spark_cluster.node.probes:round_trip"

VERSIONS = """\
import ctypes, importlib.metadata as metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
def of_library():
    found = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return ""
    code = found.value
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
nccl = next(filter(None, map(version, ("nvidia-nccl-cu13", "nvidia-nccl-cu12"))), "")
for name, found in (("torch", version("torch")), ("nccl", nccl or of_library())):
    if found:
        print(f"{name}={found}")
"""
"""Without importing torch, which takes seconds and memory next to the server. NCCL is a package
that torch has brought, or a library of the system, whose number is as NCCL_VERSION of nccl.h."""

FIRMWARE = "/sys/class/infiniband/*/fw_ver"
BIOS = {
    "vendor": "/sys/class/dmi/id/bios_vendor",
    "version": "/sys/class/dmi/id/bios_version",
    "date": "/sys/class/dmi/id/bios_date",
}


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
        executor=plan.recipe.executor if len(plan.nodes) > 1 else "",
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
                ProcessMemory.model_validate(p, from_attributes=True) for p in reading.processes
            ),
            available_mib=reading.mem_available_mib,
            total_mib=reading.mem_total_mib,
        )
        for reading in found
    )


def nodes_of(play: Play, served: Served) -> tuple[NodeRecord, ...]:
    """Return the nodes that serve as they are now, with the variables of the engine on each."""
    server = served.server
    chosen = engine(server.recipe.engine)
    names = {node.name for node in served.deployment.nodes}
    nodes = [node for node in play.nodes if node.name in names]
    firmwares = play.on_each(nodes, lambda node: firmware(play.session(node)))
    return tuple(
        node_record(node).model_copy(
            update={**firmwares[node.name], "environment": chosen.environment(node, server)}
        )
        for node in nodes
    )


def node_record(node: Node) -> NodeRecord:
    """Return what is known of a node by its facts."""
    facts = node.facts
    return NodeRecord(
        name=node.name,
        hardware=facts.gpu.name if facts.gpu else facts.arch,
        driver=facts.gpu.driver if facts.gpu else "",
        kernel=facts.kernel,
        dgx=facts.dgx_version or "",
        mtu=max(link_mtus(node), default=None),
        hcas=tuple(hca.name for hca in facts.hcas),
    )


def link_mtus(node: Node) -> list[int]:
    """Return the MTU of each interface of a node's link, in bytes."""
    names = {link.interface for link in node.links}
    return [interface.mtu for interface in node.facts.interfaces if interface.name in names]


# -- what `up` does not need, asked once a server --------------------------------------------------


def round_trip_ms(session: Session, url: str) -> float | None:
    """Return the median round trip from a node to a server, in ms; None when it is not known.

    Args:
        session: with the node from which the load comes.
        url: of the server.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    words = [str(parts.hostname), str(port), str(TRIES)]
    try:
        found = number(float(_output(session, words, program=ROUND_TRIP)))
    except ValueError:
        return None
    return None if found is None or found < 0 else round(found, 4)


def program_versions(session: Session, server: Server) -> dict[str, str]:
    """Return the versions of torch and NCCL that the engine's programs use, where they tell."""
    if server.recipe.runtime == "docker":
        python = ["docker", "exec", SERVER, "python3"]
    else:
        python = [f"{server.venv}/bin/python"]
    lines = (
        line.partition("=") for line in _output(session, [*python, "-c", VERSIONS]).split("\n")
    )
    return {name: _short(value) for name, _, value in lines if name in ("torch", "nccl") and value}


def repo_digest(session: Session, image_id: str, reference: str) -> str:
    """Return `NAME@sha256:...` under which a registry has an image; empty where none has it.

    Args:
        image_id: as Docker on the node names it.
        reference: under which it was started: the registry's name for it counts, not another's.
    """
    if not image_id:
        return ""
    try:
        (image,) = parse_images(_output(session, image_question(image_id)))
    except ValueError:  # it is not there, or Docker is down
        return ""
    return of_repository(image.digests, reference)


def of_repository(digests: Iterable[str], reference: str) -> str:
    """Return the first of `NAME@sha256:...` whose repository is that of a reference, or ""."""
    wanted = _repository(reference)
    return next((text for text in digests if _repository(text) == wanted), "")


def _repository(reference: str) -> str:
    """Return the repository of a reference, without Docker Hub's own name."""
    name = without_tag(reference.partition("@")[0])
    return name.removeprefix("docker.io/").removeprefix("library/")


def firmware(session: Session) -> dict[str, str]:
    """Return `firmware` (of the ConnectX, each version once) and `bios` (vendor, version and date)
    of a node's record; empty where they cannot be read."""
    try:
        answer = session.request("gather", files=BIOS, trees={"firmware": FIRMWARE})
    except SparkClusterError:  # no reason not to measure
        return {}
    versions, files = answer["trees"]["firmware"].values(), answer["files"]
    known = sorted({_short(text) for text in versions if text.strip()})
    bios = [_short(files[name]) for name in BIOS if files[name]]
    return {"firmware": ", ".join(known), "bios": " ".join(filter(None, bios))}


def _short(text: str) -> str:
    return printable(text.strip())[:LONGEST]


def _output(session: Session, argv: list[str], *, program: str = "") -> str:
    """Return what a command, or a program of ours, prints; empty when it fails."""
    with contextlib.suppress(SparkClusterError):
        done = session.run(argv, timeout=ASK_S, program=program)
        if done.status == 0:
            return done.stdout.strip()
    return ""
