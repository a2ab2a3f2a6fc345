"""Refuse a start whose ports another program has, before anything is fetched or stopped for it.

The engine itself would say so only after it has loaded the model, and Ray not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.config.ports import SERVICES
from spark_cluster.errors import Refused
from spark_cluster.facts.listeners import EVERYWHERE, LISTENERS, Listener, parse
from spark_cluster.inference import runtime
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.node import unit_state
from spark_cluster.serving.proxy import UNIT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spark_cluster.runner.play import Play
    from spark_cluster.serving.plan import ServePlan
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


def must_be_free(play: Play, plan: ServePlan) -> None:
    """Look for other programs on the ports of what is to be started; ours are left out.

    Raises:
        Refused: with the port, its purpose, and the program that has it.
    """
    questions = {
        "ss": list(LISTENERS),
        "proxy": ["systemctl", "is-active", UNIT],
        **{name: runtime.question(name) for name in (SERVER, RAY)},
    }
    asked = [(n, play.session(n).submit("gather", commands=questions)) for n in plan.nodes]
    for node, pending in asked:
        answers = pending.wait()["commands"]
        own = PROXY if _output(answers, "proxy").strip() == "active" else None
        others = [one for one in parse(_output(answers, "ss")) if one.program != own]
        for wanted in _wanted(plan, node, answers):
            for one in others:
                if one.port == wanted.port and one.blocks(wanted.address):
                    _refuse(node, wanted, one)


def _wanted(plan: ServePlan, node: Node, answers: Mapping[str, Any]) -> Iterator[WantedPort]:
    """Yield the ports on a node of those programs that do not run there yet."""
    endpoint, deployment = plan.endpoint, plan.deployment
    if node.name == deployment.nodes[0]:
        proxied = endpoint.engine_port is not None
        if proxied:
            yield WantedPort(endpoint.host, endpoint.port, "endpoint", "`--port`")
        if _absent(answers, SERVER):
            setting = "`serve.engine_port` in the inventory" if proxied else "`--port`"
            yield WantedPort(deployment.host, deployment.port, "server", setting)
    if not deployment.on_ray or not _absent(answers, RAY):
        return
    ports, everywhere = deployment.ray.ports, EVERYWHERE[0]
    if node.is_head:
        yield WantedPort(everywhere, ports.gcs, "head of Ray", "`ray.port` in the recipe")
        setting = "`ray.dashboard_port` in the recipe"
        yield WantedPort(deployment.host, ports.dashboard, "dashboard of Ray", setting)
    for port in range(ports.first_port, ports.first_port + SERVICES):
        yield WantedPort(everywhere, port, "services of Ray", "`ray.first_port` in the recipe")


def _absent(answers: Mapping[str, Any], name: str) -> bool:
    return unit_state.answered(answers[name]).holds_nothing


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
