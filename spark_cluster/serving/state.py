"""What serves now, and what is wrong: containers, Ray, health, a completion, put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_cluster.engine.play import Play
from spark_cluster.engine.session import Session
from spark_cluster.serving import logs
from spark_cluster.serving.endpoint import Endpoint
from spark_cluster.serving.engine import RAY, SERVER
from spark_cluster.serving.ray_state import RayNode, RayState
from spark_cluster.serving.readiness import ContainerState, ask_once, parse_state
from spark_cluster.userfiles.recipe_file import Probe

DASHBOARD = 8265

MANY_RESTARTS = 3
"""Restarts after which a server that is not healthy is failing, not loading. Docker waits longer
each time; after a reboot one or two are usual, until Ray's head is there."""


@dataclass(frozen=True)
class NodeState:
    """One node: its serving containers, or why it could not be asked."""

    name: str
    reachable: bool
    containers: dict[str, ContainerState] = field(default_factory=dict)
    error: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reachable": self.reachable,
            "containers": {
                name: {"status": c.status, "exit_code": c.exit_code, "restarts": c.restarts}
                for name, c in self.containers.items()
            },
            **({"error": self.error} if self.error else {}),
        }


@dataclass(frozen=True)
class Status:
    """The cluster's serving state.

    Attributes:
        state: `stopped` (nothing is there), `serving` (a completion came and nothing is wrong),
            `starting` (containers run, not healthy yet), `degraded` (answers, but something is
            wrong) or `failed` (should serve and does not).
        problems: what is wrong, in words; empty when nothing is.
    """

    state: str
    nodes: list[NodeState]
    ray: list[RayNode]
    endpoint: str | None = None
    model: str | None = None
    tp: int | None = None
    problems: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As in `status --json`."""
        return {
            "state": self.state,
            "nodes": [node.document() for node in self.nodes],
            "ray": {"nodes": len(self.ray), "gpus": sum(node.gpus for node in self.ray)},
            "endpoint": self.endpoint,
            "model": self.model,
            "tp": self.tp,
            "problems": list(self.problems),
        }


def status(play: Play, endpoint_key: str | None, probe: Probe) -> Status:
    """Look at everything; nothing is changed.

    Args:
        endpoint_key: the endpoint's API key, when it has one.
        probe: the question of the completion.
    """
    nodes = _nodes(play)
    known = {node.name: node for node in nodes}
    server = _server(play, known)
    if server is None:
        return _without_server(nodes)
    tp = int(server.labels.get("spark-cluster.tp", "1"))
    model = server.labels.get("spark-cluster.model", "")
    url = server.labels.get("spark-cluster.endpoint", "")
    head = next(node.name for node in play.nodes if node.is_head)
    on_ray = tp > 1 and server.labels.get("spark-cluster.executor", "ray") == "ray"
    ray = _ray(play, head, server) if on_ray else []
    problems = _problems(play, nodes, server, tp, ray if on_ray else None)
    endpoint = _endpoint(url, model, endpoint_key)
    health, answer = _probe(play.connections.session(head), endpoint, probe)
    if health != 200:
        problems.append(f"/health does not say 200 ({health or 'no answer'})")
    elif not answer:
        problems.append("/health is fine, but a completion does not come")
    loading = server.status == "running" and health == 0 and not problems[:-1]
    if health == 0 and server.restarts:
        problems.append(_restarted(play.connections.session(head), head, server.restarts))
        loading = loading and server.restarts < MANY_RESTARTS
    state = _state(answer=bool(answer), problems=problems, loading=loading)
    return Status(state, nodes, ray, url or None, model or None, tp, tuple(problems))


def _state(*, answer: bool, problems: list[str], loading: bool) -> str:
    if answer:
        return "degraded" if problems else "serving"
    return "starting" if loading else "failed"


def _nodes(play: Play) -> list[NodeState]:
    found = []
    here = {node.name for node in play.nodes}
    names = list(play.connections.nodes)
    asked = {
        name: play.connections.session(name).submit(
            "gather",
            commands={n: ["docker", "container", "inspect", n] for n in (SERVER, RAY)},
        )
        for name in names
        if name in here
    }
    for name in names:
        if name not in asked:
            found.append(NodeState(name, reachable=False, error=str(play.out[name].message)))
            continue
        outputs = asked[name].wait()["commands"]
        containers = {n: parse_state(d["stdout"] if d else "") for n, d in outputs.items()}
        found.append(NodeState(name, True, containers))
    return found


def _server(play: Play, known: dict[str, NodeState]) -> ContainerState | None:
    head = next((node.name for node in play.nodes if node.is_head), None)
    state = known[head].containers[SERVER] if head is not None else None
    return state if state is not None and state.status != "absent" else None


def _without_server(nodes: list[NodeState]) -> Status:
    left = [n.name for n in nodes if n.reachable and n.containers[RAY].status != "absent"]
    problems = [f"{n.name} cannot be reached: {n.error}" for n in nodes if not n.reachable]
    if left:
        problems.append(f"Ray is there without a server, on {', '.join(left)}")
    return Status("failed" if problems else "stopped", nodes, [], problems=tuple(problems))


def _ray(play: Play, head: str, server: ContainerState) -> list[RayNode]:
    port = int(server.labels.get("spark-cluster.dashboard", str(DASHBOARD)))
    with RayState(play.connections.connection(head), port) as state:
        return state.nodes()


def _problems(
    play: Play, nodes: list[NodeState], server: ContainerState, tp: int, ray: list[RayNode] | None
) -> list[str]:
    """In words; `ray` is None when the nodes are joined without Ray."""
    problems = [f"{n.name} cannot be reached: {n.error}" for n in nodes if not n.reachable]
    if server.status != "running":
        problems.append(f"the server is {server.status} (exit code {server.exit_code})")
    if tp == 1:
        return problems
    heads = [n.name for n in play.nodes if n.is_head]
    wanted = sorted(play.connections.nodes, key=lambda name: name not in heads)[:tp]
    name, whose = (SERVER, "the rank's container") if ray is None else (RAY, "Ray's container")
    for node in nodes:
        state = node.containers.get(name)
        checked = node.name in wanted and not (ray is None and node.name in heads)
        if checked and state is not None and state.status != "running":
            what = "gone" if state.status == "absent" else state.status
            problems.append(f"{whose} on {node.name} is {what}")
    for spark in play.nodes:
        hcas = spark.facts.hcas
        if spark.name in wanted and hcas and not any(hca.up for hca in hcas):
            problems.append(f"no ConnectX-7 interface of {spark.name} is up: is the cable in?")
    if ray is None:
        return problems
    if len(ray) < tp:
        problems.append(f"Ray shows {len(ray)} of {tp} nodes")
    elif sum(node.gpus for node in ray) < tp:
        problems.append(f"Ray shows {sum(n.gpus for n in ray):g} of {tp} GPUs")
    return problems


def _restarted(session: Session, head: str, times: int) -> str:
    """That the server does not stay up, and the first thing that its log complains of."""
    fault = logs.first_error({head: logs.read(session, SERVER)})
    said = f", its log says: {fault.text}" if fault else ""
    known = fault.known if fault else None
    fix = f"; {known.title} ({known.id}): {known.fix}" if known else ""
    return f"the server has been restarted {times} times{said}{fix}"


def _endpoint(url: str, model: str, key: str | None) -> Endpoint | None:
    host, _, port = url.removeprefix("http://").removesuffix("/v1").rpartition(":")
    return Endpoint(host, int(port), model, key) if port.isdigit() else None


def _probe(session: Session, endpoint: Endpoint | None, probe: Probe) -> tuple[int, str]:
    """Status of /health, and the text of a completion (empty when none comes in 20 s)."""
    if endpoint is None:
        return 0, ""
    health = session.http(endpoint.path("/health"), headers=endpoint.headers, timeout=5).status
    return health, ask_once(session, endpoint, probe, timeout=20).text if health == 200 else ""
