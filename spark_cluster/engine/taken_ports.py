"""Refuse a start whose ports another program has, before anything is fetched or stopped for it.

The engine itself would say so only after it has loaded the model, and Ray not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.ports import LOOPBACK, SERVICES, EnginePorts
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.endpoint import running
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import UNIT
from spark_cluster.errors import Refused
from spark_cluster.facts.parsers import EVERYWHERE, LISTENERS, Listener, listeners
from spark_cluster.node import unit_state
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

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
        "proxy": ["systemctl", "is-active", UNIT],
        **{name: runtime.question(name) for name in programs},
    }
    asked = [(n, play.session(n).submit("gather", commands=questions)) for n in deployment.nodes]
    for node, pending in asked:
        answers = pending.wait()["commands"]
        states = {n: unit_state.answered(d) for n, d in answers.items() if n in programs}
        served = [running(state.labels, None, None) for state in states.values() if _runs(state)]
        own = {endpoint.port for endpoint in served if endpoint is not None}
        proxy = PROXY if _output(answers, "proxy").strip() == "active" else None
        listens = listeners(_output(answers, "ss"))
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
            yield from _of_ray(server.ray.ports, node)


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


def _output(answers: Mapping[str, Any], name: str) -> str:
    done = answers[name]
    return str(done["stdout"]) if done is not None else ""


def _refuse(node: Node, wanted: WantedPort, taken_by: Listener) -> None:
    raise Refused(
        f"port {wanted.port}, which the {wanted.purpose} needs, is taken by {taken_by}",
        where=node.name,
        hint=f"stop it, or choose another port with {wanted.setting}; `ss -ltnp` on {node.name} "
        "lists all that listens",
    )
