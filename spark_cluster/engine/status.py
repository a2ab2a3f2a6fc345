"""The state of serving as `status` reports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from typing_extensions import TypedDict

from spark_cluster.config.document import Document, Hidden, PrintedAs, WhenSet
from spark_cluster.config.model_kind import ModelKind
from spark_cluster.engine import firewall, runtime
from spark_cluster.engine.launches import Warmth
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION, LOADER_UNIT, UNIT, Access
from spark_cluster.engine.ray import RayNode
from spark_cluster.node import containers
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import printed


class ContainerKeys(TypedDict):
    """A container, as `status --json` prints it."""

    status: str
    exit_code: int
    restarts: int


def _containers(found: dict[str, ContainerState]) -> dict[str, ContainerKeys]:
    return {
        name: {"status": c.status, "exit_code": c.exit_code, "restarts": c.restarts}
        for name, c in found.items()
    }


@dataclass(frozen=True)
class NodeState(Document):
    """The state of one node: its serving containers, or why it could not be asked.

    Attributes:
        firewall: what is wrong with it; nothing when it is in force.
        proxy: state of the proxy's unit, as systemd calls it.
        loader: that of the unit that loads models on request.
        description: what the proxy's own file says of the endpoint; None without such a file.
    """

    name: str
    reachable: bool
    containers: Annotated[dict[str, ContainerState], PrintedAs(_containers)] = field(
        default_factory=dict
    )
    error: WhenSet[str] = ""
    firewall: Hidden[str] = ""
    proxy: Hidden[str] = ""
    loader: Hidden[str] = ""
    description: Hidden[str | None] = None


def ask_nodes(play: Play) -> list[NodeState]:
    """Ask all nodes in parallel; one that is not reached has its error."""
    found = []
    here = {node.name for node in play.nodes}
    names = list(play.connections.nodes)
    reachable = [(name, play.connections.session(name)) for name in names if name in here]
    asked = {
        name: session.submit(
            "gather",
            commands={
                **{n: runtime.question(n) for n in (SERVER, RAY)},
                "firewall": list(firewall.LIST),
                **{unit: ["systemctl", "is-active", unit] for unit in (UNIT, LOADER_UNIT)},
            },
            files={"firewall": firewall.KEPT, "endpoint": DESCRIPTION},
        )
        for name, session in reachable
    }
    for name in names:
        if name not in asked:
            found.append(NodeState(name, reachable=False, error=str(play.out[name].message)))
            continue
        answer = asked[name].wait()
        commands, files = answer["commands"], answer["files"]
        outputs = printed(answer)
        found.append(
            NodeState(
                name,
                True,
                {n: containers.answered(commands[n]) for n in (SERVER, RAY)},
                firewall=firewall.wrong_with(commands["firewall"], files["firewall"]),
                proxy=outputs[UNIT].strip(),
                loader=outputs[LOADER_UNIT].strip(),
                description=files["endpoint"],
            )
        )
    return found


Word = Literal["serving", "on request", "loading", "failed", "unreachable"]


@dataclass(frozen=True)
class ServerState(Document):
    """The state of a replica.

    Attributes:
        node: name of its node.
        url: its own OpenAI base URL, which the proxy asks.
        state: `serving` (an answer came), `loading` (its program runs, and does not take requests
            yet), `on request` (it is loaded when it is asked for), `failed` or `unreachable` (its
            node).
        problem: what is wrong, as text; empty when nothing is.
    """

    node: str
    url: str
    state: Word
    problem: Hidden[str] = ""


@dataclass(frozen=True)
class ModelState(ServerState):
    """The state of one of several models.

    Attributes:
        model: the name to ask for; `aliases` are others.
        kind: what it answers.
        recipe: that its server was started with; empty where that is not known.
    """

    model: str = ""
    aliases: tuple[str, ...] = ()
    kind: ModelKind = "chat"
    recipe: str = ""


class RayKeys(TypedDict):
    """The Ray cluster, as `status --json` prints it."""

    nodes: int
    gpus: float


def _ray(nodes: list[RayNode]) -> RayKeys:
    return {"nodes": len(nodes), "gpus": sum(node.gpus for node in nodes)}


@dataclass(frozen=True)
class Status(Document):
    """The cluster's serving state.

    Attributes:
        access: who can reach the endpoint, and how it is guarded.
        state: `stopped` (nothing is there), `serving` (a completion came and nothing is wrong),
            `starting` (containers run, not healthy yet), `degraded` (answers, but something is
            wrong) or `failed` (should serve and does not).
        problems: what is wrong, as text; empty when nothing is.
        kind: of the model: chat, embedding, reranking or transcription; None without a server.
        overrides: engine arguments that `up` was given in place of the recipe's, as options.
        caches: whether the next launch of the inventory's recipe is warm; None without a recipe.
        replicas: the servers behind the endpoint, where there are several of one model.
        data_parallel: ranks of the server, each on a node of its own.
        models: the models, where the endpoint has several; `model`, `tp` and `kind` are None then.
        tuned: files with tuned parameters of kernels that the server was started with.
    """

    state: str
    nodes: list[NodeState]
    ray: Annotated[list[RayNode], PrintedAs(_ray)]
    endpoint: str | None = None
    access: Access | None = None
    model: str | None = None
    tp: int | None = None
    problems: tuple[str, ...] = ()
    kind: ModelKind | None = None
    overrides: str = ""
    caches: Warmth | None = None
    replicas: tuple[ServerState, ...] = ()
    models: WhenSet[tuple[ModelState, ...]] = ()
    tuned: tuple[str, ...] = ()
    data_parallel: int = 1
