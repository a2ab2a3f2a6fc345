"""The results of `up` and of `status`: endpoint, answer, holders of memory, problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from typing_extensions import TypedDict

from spark_cluster.config.recipe_schema import EngineValue, ModelKind, ReadinessCheck
from spark_cluster.config.schema import Document, Hidden, PrintedAs, WhenSet, derived, printed
from spark_cluster.engine import firewall, runtime, vram
from spark_cluster.engine.deployment import Deployment, Endpoint, Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.launches import Warmth
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION, LOADER_UNIT, UNIT, Access
from spark_cluster.engine.ray import RayNode, RayState
from spark_cluster.engine.readiness import Member, container_state
from spark_cluster.engine.vram import MemoryReadings, NodeVram, sample
from spark_cluster.engine.vram import peak as largest
from spark_cluster.node import containers, replies
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Answer, ask_all
from spark_cluster.runner.session import printed as texts_of


class ServedModelsKeys(TypedDict):
    """What `up --json` prints of an endpoint with several models."""

    endpoint: str
    access: Access
    vram: MemoryReadings
    models: list[VerifiedServer]


@dataclass(frozen=True)
class VerifiedServer(Document):
    """A verified server.

    Attributes:
        server: what is served, at its own address.
        answer: to the recipe's own question; of another kind than chat, what its rung found.
        versions: name to version, for the record.
    """

    server: Hidden[Server]
    answer: str
    versions: dict[str, str] = field(default_factory=dict)
    model = derived(str, lambda one: one.server.names[0])
    aliases = derived(list[str], lambda one: list(one.server.names[1:]))
    recipe = derived(str, "server.recipe.name")
    kind = derived(ModelKind, "server.recipe.kind")
    node = derived(str, lambda one: one.server.nodes[0].name)
    tp = derived(int, "server.tp")
    on_request = derived(bool, "server.on_request", when_set=True)

    @printed
    def verified(self) -> list[ReadinessCheck]:
        """The readiness checks that were made; none of a model that is loaded on request and was
        verified when it was added."""
        made = self.answer or not self.server.on_request
        return list(self.server.recipe.readiness.rungs) if made else []

    @property
    def version(self) -> str:
        """The engine's version; empty when it is not known."""
        return self.versions.get(self.server.recipe.engine, "")


@dataclass(frozen=True)
class Served(Document):
    """A verified endpoint.

    Attributes:
        deployment: what is served.
        servers: its servers, verified, in the same order.
        before, peak, now: VRAM before the run, the largest while loading, and when ready.
        under_load: the largest VRAM during a short load; empty where nothing was started.
        fingerprint: SHA-256 of the certificate that the endpoint presents; empty without TLS.
    """

    deployment: Hidden[Deployment]
    servers: Hidden[tuple[VerifiedServer, ...]]
    before: Hidden[list[NodeVram]]
    peak: Hidden[list[NodeVram]]
    now: Hidden[list[NodeVram]]
    fingerprint: Hidden[str] = ""
    under_load: Hidden[list[NodeVram]] = field(default_factory=list)
    url = derived(str, "endpoint.url", "endpoint")
    model = derived(str, "endpoint.model")
    recipe = derived(str, "server.recipe.name")
    kind = derived(ModelKind, "server.recipe.kind")
    tp = derived(int, "server.tp")
    replicas = derived(list[str], lambda one: [at.node for at in one.endpoint.replicas])
    overrides = derived(dict[str, EngineValue | None], "server.recipe.overrides")
    verified = derived(list[ReadinessCheck], lambda one: list(one.server.recipe.readiness.rungs))

    @property
    def server(self) -> Server:
        """The first server, the only one where there are no replicas and not several models."""
        return self.deployment.first

    @property
    def endpoint(self) -> Endpoint:
        """Where users reach it."""
        return self.deployment.endpoint

    @printed
    def answer(self) -> str:
        """The answer of the first server to its recipe's own question."""
        return self.servers[0].answer

    @printed
    def versions(self) -> dict[str, str]:
        """Name to version, of the first server and what it runs on."""
        return self.servers[0].versions

    @printed
    def access(self) -> Access:
        """The access to the endpoint: who can reach it, and how it is protected."""
        return self.endpoint.access(self.fingerprint)

    @property
    def readings(self) -> MemoryReadings:
        """The memory before the run, while loading and now."""
        return {"nodes": self.now, "before": self.before, "peak": self.peak}

    @printed
    def vram(self) -> MemoryReadings:
        """The memory of all nodes, that under a short load with it."""
        return {**self.readings, "under_load": self.under_load}


@dataclass(frozen=True)
class ServedModels(Served):
    """A verified endpoint with several models; see `Served`."""

    def printed_as(self) -> ServedModelsKeys:
        """Return the endpoint of several models."""
        return {
            "endpoint": self.url,
            "access": self.access,
            "models": list(self.servers),
            "vram": self.readings,
        }


def served(
    play: Play,
    deployment: Deployment,
    found: Sequence[Member],
    answers: Sequence[str],
    *,
    before: list[NodeVram],
    peak: list[NodeVram],
) -> Served:
    """Return the result of an `up`: the memory that is held now, and what runs.

    Args:
        answers: of each server to its recipe's own question.
        before, peak: VRAM before the run, and the largest while loading.
    """
    endpoint = deployment.endpoint
    now, asked, *each = play.together(
        lambda: sample(play.sessions),
        lambda: endpoint.request(play.session(play.head), "/health") if endpoint.tls else None,
        *[partial(versions, one.play, one.server) for one in found],
    )
    vram.record(play.bus, "ready", now)
    verified = tuple(
        VerifiedServer(one.server, answer, known)
        for one, answer, known in zip(found, answers, each, strict=True)
    )
    fingerprint = asked.certificate if asked is not None else ""
    kind = ServedModels if endpoint.models else Served
    return kind(deployment, verified, before, largest(peak, now), now, fingerprint)


def versions(play: Play, server: Server) -> dict[str, str]:
    """Return the versions of the engine and of what it runs on, by name; asked in parallel."""
    dashboard = server.recipe.ray.dashboard_port if server.on_ray else None
    session = play.session(play.head)
    path, key = engine(server.recipe.engine).version
    asked, ray, runs = play.together(
        lambda: server.endpoint.of_engine.request(session, path),
        lambda: RayState(session, dashboard).version() if dashboard else "",
        lambda: container_state(play, server.program),
    )
    facts = play.head.facts
    found = {
        server.recipe.engine: _field(asked, key),
        "ray": ray,
        "image": runs.image,
        "docker": facts.docker or "",
        "driver": facts.gpu.driver if facts.gpu else "",
        "dgx": facts.dgx_version or "",
        "kernel": facts.kernel,
    }
    return {name: version for name, version in found.items() if version}


def _field(answer: Answer | None, name: str) -> str:
    if answer is None or answer.status != 200:
        return ""
    return replies.text_of(replies.at(replies.decoded(answer.body), name))


# The state of serving as `status` reports it.


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
    answers = ask_all(
        {name: play.connections.session(name) for name in names if name in here},
        "gather",
        commands={
            **{n: runtime.question(n) for n in (SERVER, RAY)},
            "firewall": list(firewall.LIST),
            **{unit: ["systemctl", "is-active", unit] for unit in (UNIT, LOADER_UNIT)},
        },
        files={"firewall": firewall.KEPT, "endpoint": DESCRIPTION},
    )
    for name in names:
        if name not in answers:
            found.append(NodeState(name, reachable=False, error=str(play.out[name].message)))
            continue
        answer = answers[name]
        commands, files = answer["commands"], answer["files"]
        outputs = texts_of(answer)
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
            `starting` (containers run, not healthy yet, or an `up` is at work), `degraded`
            (answers, but something is wrong), `interrupted` (an `up` did not get to its end) or
            `failed` (should serve and does not).
        problems: what is wrong, as text; empty when nothing is.
        kind: of the model: chat, embedding, reranking or transcription; None without a server.
        recipe: that the server was started with; None where that is not known.
        since: when the server was last started (UTC, ISO 8601); None where none runs.
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
    recipe: WhenSet[str | None] = None
    since: WhenSet[str | None] = None
