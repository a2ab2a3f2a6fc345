"""The firewall of the engine's ports: only the other serving nodes reach them, over the fabric.

Ray runs what it is asked to run, as root; vLLM's ranks, NCCL and Gloo have no authentication.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from spark_cluster.config.fact_gathering import EVERYWHERE, LISTENERS, Listener, listeners
from spark_cluster.config.inventory import Inventory
from spark_cluster.config.ports import (
    LOOPBACK,
    SERVICES,
    EnginePorts,
    Span,
    recipe_ports,
    vllm_ports,
)
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import Deployment, Server, running
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import UNIT as PROXY_UNIT
from spark_cluster.engine.ray import TOKENS_SINCE
from spark_cluster.errors import Refused
from spark_cluster.node import containers, paths
from spark_cluster.node.containers import ContainerState
from spark_cluster.resources import NftTable
from spark_cluster.resources.nft_table import normalised
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import ask_all, printed

TABLE = "spark_cluster"
COPIES_TABLE = f"{TABLE}_copies"
"""Of the ports on which a node sends models and images to others."""
BEFORE_TOKENS = Version("0.12")
"""The first vLLM that was released after Ray 2.52 (November 2025); images carry the Ray of their
day."""
UNIT = "spark-cluster-firewall.service"
UNIT_FILE = f"{paths.SYSTEMD_UNITS}/{UNIT}"
DROP_IN = paths.NFTABLES_DROP_IN
"""Has nftables.service load the table again whenever it has flushed all of them."""
LIST = ("nft", "-j", "list", "table", "inet", TABLE)
KEPT = NftTable(TABLE, state="absent").listing
"""The question whether it is in force: a command, and a file to compare its answer with."""

WORKS = ("sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; nft list tables")
"""The question whether nftables works on a node."""

ALONE_AND_OPEN = (
    "nftables does not work here, so there is no firewall: a port that the engine opens on all "
    "addresses is open to the network. `apt install nftables`, then `spark-cluster up`, closes it"
)
"""One node that serves alone goes on without: it has no Ray, and most of vLLM is on its
loopback."""

OPEN = (
    "trusted_network: true in the inventory, so there is no firewall: anyone who can reach these "
    "nodes can reach Ray and vLLM's ranks, and run code as root unless Ray requires its token"
)


def settings(inventory: Inventory, server: Server, nodes: Sequence[Node]) -> dict[str, Any]:
    """Return what the playbook gives the role `firewall` while these nodes serve together.

    Raises:
        Refused: the endpoint has a port of Ray's.
    """
    _must_not_clash(inventory, server.recipe.ray.ports.spans)
    if inventory.trusted_network:
        return {"state": "absent"}
    return {
        "state": "present",
        "peers": tuple(node.name for node in nodes) if len(nodes) > 1 else (),
        "ports": closed(inventory, server, nodes),
        "served": ((nodes[0].name, inventory.serve.port), (nodes[0].name, server.port)),
        "endpoint_port": inventory.serve.port if inventory.serve.bind != "loopback" else None,
    }


def _must_not_clash(inventory: Inventory, of_ray: Sequence[Span]) -> None:
    serve = inventory.serve
    for name, port in (("serve.port", serve.port), ("serve.engine_port", serve.engine_port)):
        if any(first <= port <= last for first, last in of_ray):
            raise Refused(
                f"{name}: {port} is a port of Ray's",
                where=str(inventory.path),
                hint="take another one, or give Ray others (`ray:` in the recipe)",
            )


def closed(inventory: Inventory, server: Server, nodes: Sequence[Node]) -> tuple[Span, ...]:
    """The ports that are chosen; the kernel's own range is closed besides.

    A rank adds its number to a port that a recipe names, so one port is closed for each node.
    """
    master = EnginePorts().master
    given = inventory.head.settings_for("vllm").data.get("master_port", master)
    addresses = {node.address for node in nodes}
    addresses |= {str(link.address.ip) for node in nodes for link in node.links}
    own = engine(server.recipe.engine).ports(int(given))
    named = recipe_ports(server.flags, server.env, addresses)
    ranks = {(port, min(port + len(nodes) - 1, 65535)) for port in named}
    ours = {*server.recipe.ray.ports.spans, *vllm_ports(server.env)}
    return tuple(sorted({*ours, *ranks, *own}))


def remarks(inventory: Inventory | None, recipe: Recipe, tp: int) -> tuple[str, ...]:
    """Return a plan's remarks on who can reach the engine."""
    if tp == 1:
        return ()
    if inventory is not None and inventory.trusted_network:
        return (OPEN,)
    with contextlib.suppress(ValueError):
        version = Version(recipe.vllm.version or "nightly")
        if recipe.executor == "ray" and version < BEFORE_TOKENS:
            return (
                f"images of vLLM {version} have a Ray older than {TOKENS_SINCE}, which takes "
                "requests without a token: only the firewall keeps others from it",
            )
    return ()


def wrong_with(listed: Mapping[str, Any] | None, kept: str | None) -> str:
    """Return why the table is not as `up` left it; nothing when it is.

    Args:
        listed: what `LIST` gave; None without the program.
        kept: content of `KEPT`.
    """
    if listed is None:
        return "there is no nft"
    if listed["status"] != 0:
        return "it is not in force"
    try:
        return "" if normalised(listed["stdout"]) == kept else "its rules were changed"
    except ValueError:
        return "nft lists it in a form that is not known"


# Refuse a start whose ports another program has, before anything is fetched or stopped for it.
#
# The engine itself would say so only after it has loaded the model, and Ray not at all.

PROXY = "haproxy"
"""The program of the unit of the proxy."""


@dataclass(frozen=True)
class WantedPort:
    """A port that a program of ours will listen on, and how to choose another one."""

    address: str
    port: int
    purpose: str
    setting: str


def must_be_free(play: Play, deployment: Deployment) -> None:
    """Look for other programs on the ports of what is to be started; ours are left out.

    So is a port that a server of ours has now: it is ended before another one starts there.

    Raises:
        Refused: with the port, its purpose, and the program that has it.
    """
    programs = {SERVER, RAY, *(server.program for server in deployment.servers)}
    questions = {
        "ss": list(LISTENERS),
        "proxy": ["systemctl", "is-active", PROXY_UNIT],
        **{name: runtime.question(name) for name in programs},
    }
    answers = ask_all(play.sessions_of(deployment.nodes), "gather", commands=questions)
    for node in deployment.nodes:
        answer = answers[node.name]
        texts = printed(answer)
        states = {n: containers.answered(answer["commands"][n]) for n in programs}
        served = [running(state.labels, None, None) for state in states.values() if _runs(state)]
        own = {endpoint.port for endpoint in served if endpoint is not None}
        proxy = PROXY if texts["proxy"].strip() == "active" else None
        listens = listeners(texts["ss"])
        others = [one for one in listens if one.program != proxy and one.port not in own]
        for wanted in _wanted(deployment, node, states):
            for one in others:
                if one.port == wanted.port and one.blocks(wanted.address):
                    _refuse(node, wanted, one)


def _wanted(
    deployment: Deployment, node: Node, states: Mapping[str, ContainerState]
) -> Iterator[WantedPort]:
    """Yield the ports on a node of those programs that do not run there yet."""
    endpoint = deployment.endpoint
    proxied = endpoint.engine_port is not None
    if proxied and node.name == deployment.nodes[0].name:
        yield WantedPort(endpoint.host, endpoint.port, "endpoint", "`--port`")
    for server in deployment.servers:
        if node.name == server.nodes[0].name and not _runs(states[server.program]):
            setting = "`serve.engine_port` in the inventory" if proxied else "`--port`"
            yield WantedPort(server.host, server.port, "server", setting)
        if server.on_ray and not _runs(states[RAY]):
            yield from _of_ray(server.recipe.ray.ports, node)


def _of_ray(ports: EnginePorts, node: Node) -> Iterator[WantedPort]:
    everywhere = EVERYWHERE[0]
    if node.is_head:
        yield WantedPort(everywhere, ports.gcs, "head of Ray", "`ray.port` in the recipe")
        setting = "`ray.dashboard_port` in the recipe"
        yield WantedPort(LOOPBACK, ports.dashboard, "dashboard of Ray", setting)
    for port in range(ports.first_port, ports.first_port + len(SERVICES)):
        yield WantedPort(everywhere, port, "services of Ray", "`ray.first_port` in the recipe")


def _runs(state: ContainerState) -> bool:
    return not state.holds_nothing


def _refuse(node: Node, wanted: WantedPort, taken_by: Listener) -> None:
    raise Refused(
        f"port {wanted.port}, which the {wanted.purpose} needs, is taken by {taken_by}",
        where=node.name,
        hint=f"stop it, or choose another port with {wanted.setting}; `ss -ltnp` on {node.name} "
        "lists all that listens",
    )
