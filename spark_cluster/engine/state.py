"""The state of serving and its problems: containers, Ray, health, a completion, put together.

So is the state of each server behind an endpoint that has several: replicas, or models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import ModelKind, Probe
from spark_cluster.engine import runtime, tuning
from spark_cluster.engine.deployment import ANSWERS, Endpoint, probe_once, running, short
from spark_cluster.engine.engine import engine_of, judge_health
from spark_cluster.engine.launches import Warmth, next_launch
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import (
    LOADER_UNIT,
    UNIT,
    Access,
    ModelServer,
    Replica,
    described,
    models_of,
    replicas_of,
)
from spark_cluster.engine.ray import ALONE, RayNode, RayState, dashboard_port
from spark_cluster.engine.result import ModelState, NodeState, ServerState, Status, Word, ask_nodes
from spark_cluster.errors import SparkClusterError
from spark_cluster.node import containers, durable
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import HEALTH_S, Completion, Life, State, judge
from spark_cluster.node.output import counted
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Answer, Session, ask_each

COMPLETION_S = 10.0
"""Seconds for the completion of `status`: a server with many requests answers later than one
without, but who asks for the status waits."""

WITHOUT_LINK_S = 2.0
"""The same when the link is down: ranks that were joined over it wait for each other for ever."""

WORDS: Mapping[Life, Word] = {
    Life.SERVING: "serving",
    Life.UNLOADED: "on request",
    Life.LOADING: "loading",
    Life.UNSEEN: "unreachable",
}
"""What users read; of the others `failed`."""

NOT_ASKED = ContainerState("unknown", error="the node does not answer")


def status(
    play: Play, endpoint_key: str | None, probe: Probe, recipe: Recipe | None = None
) -> Status:
    """Look at everything; nothing is changed.

    Args:
        endpoint_key: the endpoint's API key, when it has one.
        probe: the question of the completion.
        recipe: what is started next; None leaves the caches out.
    """
    look = _Look(play, ask_nodes(play), endpoint_key, short(probe))
    if recipe is None:
        return look.state()
    now: Status
    now, caches = play.together(look.state, partial(look.warmth, recipe))
    return replace(now, caches=caches)


@dataclass(frozen=True)
class _Look:
    """A look at what serves.

    Attributes:
        nodes: as they have answered.
        key: the endpoint's API key.
        probe: the question that each server has to answer, as its API outlives its engine.
    """

    play: Play
    nodes: Sequence[NodeState]
    key: str | None = field(repr=False)
    probe: Probe

    @cached_property
    def known(self) -> dict[str, NodeState]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def head(self) -> NodeState | None:
        """The head; None where it is not among the chosen nodes."""
        return next((self.known[node.name] for node in self.play.nodes if node.is_head), None)

    @cached_property
    def server(self) -> ContainerState | None:
        """The head's server, or the first replica's that there is."""
        if self.head is None:
            return None
        replicas = replicas_of(self.head.description)
        names = [self.head.name, *(replica.node for replica in replicas)]
        states = [self.known[name].containers.get(SERVER) for name in names if name in self.known]
        return next((s for s in states if s is not None and s.status != "absent"), None)

    def warmth(self, recipe: Recipe) -> Warmth:
        """Judge the next launch at the size at which the recipe runs, else at its usual one."""
        tp = recipe.size_for(len(self.nodes))
        if self.server is not None and self.server.label(containers.RECIPE) == recipe.name:
            tp = self.server.number(containers.TP, tp)
        chosen = self._serving(recipe.nodes_for(tp))
        nodes = [node for node in self.play.nodes if node.name in chosen]
        return next_launch(self.play, recipe, nodes, tp)

    def state(self) -> Status:
        """Return the state of what serves."""
        if self.head is not None:
            if models := models_of(self.head.description):
                return self._with_servers_of(models)._with_models(self.head, models)
            if self.server is not None:
                return self._with_server(self.head, self.server)
        return self._without_server()

    def _session(self, node: str) -> Session:
        return self.play.connections.session(node)

    def _serving(self, size: int) -> list[str]:
        """Return the names of the nodes that serve where so many do, the head first."""
        names = self.play.connections.nodes
        head = self.head.name if self.head is not None else ""
        return sorted(names, key=lambda name: name != head)[:size]

    # -- nothing serves ----------------------------------------------------------------------------

    def _without_server(self) -> Status:
        rays = {n.name: n.containers[RAY] for n in self.nodes if n.reachable}
        left = {name: ray for name, ray in rays.items() if ray.status != "absent"}
        problems, found = self._unreachable(), list[RayNode]()
        word = "failed" if problems else "stopped"
        if left and all(ALONE.items() <= ray.labels.items() for ray in left.values()):
            if self.head is not None and self.head.name in left:
                found = self._ray(self.head, left[self.head.name])
        elif left:
            word = "failed" if problems else self._begun(next(iter(left)))
            problems.append(f"Ray is there without a server, on {', '.join(left)}")
        return Status(word, [*self.nodes], found, problems=tuple(problems))

    def _ray(self, head: NodeState, container: ContainerState) -> list[RayNode]:
        return RayState(self._session(head.name), dashboard_port(container)).nodes()

    # -- one server, or replicas of one model ------------------------------------------------------

    def _with_server(self, head: NodeState, server: ContainerState) -> Status:
        behind = replicas_of(head.description)
        size = server.number(containers.NODES, server.number(containers.TP, 1))
        dark = self._without_link(size)
        endpoint = running(server.labels, head.description, self.key)
        limit = WITHOUT_LINK_S if dark else COMPLETION_S
        ray, replicas, (health, completion) = self.play.together(
            # Without the link Ray knows no node, which says nothing new and takes its time.
            lambda: self._ray(head, server) if server.on_ray and not dark else None,
            lambda: self._servers(behind),
            lambda: self._asked(server, self._session(head.name), endpoint, limit),
        )
        cut = self._not_done(head, server, endpoint)
        problems = [
            *(f"no ConnectX-7 interface of {name} is up: is the cable in?" for name in dark),
            *self._problems(server, size, ray, behind),
            *(replica.problem for replica in replicas if replica.problem),
            *_of_proxy(head),
            *cut,
        ]
        of_nodes = set(problems) - self._of_a_start(server, size, ray or [], replicas)
        found = judge_health(engine_of(server), health.status, None, completion)
        if not (found.serves or cut):
            problems.append(_unanswered(endpoint, health, completion, server.kind, limit))
        if health.status == 0 and server.restarts and not behind:
            problems.append(_restarted(self._session(head.name), head.name, server.restarts))
        if not found.serves and server.on_ray:
            problems += self._ray_restarted(size)
        life = judge_health(engine_of(server), health.status, server).life
        loads = endpoint is not None and life is Life.LOADING and not of_nodes
        usual = _word(answer=found.serves, problems=problems, loading=loads)
        return Status(
            self._begun(head.name) if cut else usual,
            [*self.nodes],
            ray or [],
            **_access(head, endpoint, health.certificate),
            **_by_labels(server),
            problems=tuple(problems),
            replicas=replicas,
        )

    def _of_a_start(
        self, server: ContainerState, size: int, ray: list[RayNode], others: Sequence[ServerState]
    ) -> set[str]:
        """Return what is no fault while all start: replicas load, nodes have yet to join Ray."""
        found = {one.problem for one in others if one.state == "loading"}
        if not (server.restarts or self._ray_restarted(size)):
            found.update(_of_ray(ray, size))
        return found

    def _not_done(
        self, head: NodeState, server: ContainerState, endpoint: Endpoint | None
    ) -> list[str]:
        """Return what an `up` that was interrupted did not get to; empty where it did all."""
        if _never_started(server):
            return ["the server is there and was never started"]
        serve = self.play.inventory.serve
        behind = serve.proxied and endpoint is not None and endpoint.port in serve.engine_ports
        return ["its proxy was not set up"] if behind and head.description is None else []

    def _begun(self, node: str) -> str:
        """Return the state of what an `up` has begun, which may be at work on a node still."""
        held = self._session(node).run(["flock", "-ns", durable.RUN_LOCK, "true"]).status == 1
        return "starting" if held else "interrupted"

    def _without_link(self, size: int) -> list[str]:
        """Return nodes that serve together with others, and whose ConnectX-7 interfaces are all
        down."""
        wanted = self._serving(size) if size > 1 else []
        hcas = {node.name: node.facts.hcas for node in self.play.nodes if node.name in wanted}
        return [name for name, found in hcas.items() if found and not any(h.up for h in found)]

    def _asked(
        self, server: ContainerState, session: Session, endpoint: Endpoint | None, limit: float
    ) -> tuple[Answer, Completion | None]:
        """Return the answer of /health, status 0 without an endpoint; and a completion, where
        asked."""
        if endpoint is None:
            return Answer(0, ""), None
        life, health = runtime.ask_health(engine_of(server), endpoint, session)
        if not life.serves:
            return health, None
        return health, probe_once(session, endpoint, server.kind, self.probe, timeout=limit)

    def _problems(
        self,
        server: ContainerState,
        size: int,
        ray: list[RayNode] | None,
        behind: Sequence[Replica],
    ) -> list[str]:
        """Return what is wrong, in words.

        Args:
            ray: its nodes; None when it was not asked.
            behind: the replicas, whose own problems are told elsewhere.
        """
        problems = self._unreachable()
        if not (server.running or _never_started(server) or behind):
            code = "0, as when its engine died" if server.exit_code == 0 else server.exit_code
            problems.append(f"the server is {server.in_words} (exit code {code})")
        wanted = [replica.node for replica in behind] or self._serving(size)
        if server.label(containers.FIREWALL) == "present":
            problems += self._open(wanted)
        if size == 1:
            return problems
        on_ray = server.on_ray
        name, whose = (RAY, "Ray's container") if on_ray else (SERVER, "the rank's container")
        for node in self.nodes:
            state = node.containers.get(name)
            checked = node.name in wanted and (on_ray or node is not self.head)
            if checked and state is not None and state.status != "running":
                what = "gone" if state.status == "absent" else state.in_words
                problems.append(f"{whose} on {node.name} is {what}")
        return problems if ray is None else [*problems, *_of_ray(ray, size)]

    def _ray_restarted(self, size: int) -> list[str]:
        """Return where Ray was started again, which ends the server: why one that served loads."""
        serve = [n for n in self.nodes if n.reachable and n.name in self._serving(size)]
        times = {node.name: node.containers[RAY].restarts for node in serve}
        return [
            f"Ray's container on {name} has been restarted {counted(count, 'time')}; a server "
            "that had its workers there is started again"
            for name, count in times.items()
            if count
        ]

    def _unreachable(self) -> list[str]:
        return [f"{n.name} cannot be reached: {n.error}" for n in self.nodes if not n.reachable]

    def _open(self, guarded: Collection[str]) -> list[str]:
        """Return what is wrong with the firewall on the nodes that should have one."""
        return [
            f"the firewall of the engine's ports on {node.name}: {node.firewall}"
            for node in self.nodes
            if node.firewall and node.name in guarded
        ]

    # -- several models ----------------------------------------------------------------------------

    def _with_servers_of(self, models: Sequence[ModelServer]) -> _Look:
        """Return it with the servers of the models among the nodes' containers."""
        asked = {
            node.name: {"commands": {p: runtime.question(p) for p in programs}}
            for node in self.nodes
            if (programs := [one.program for one in models if one.node == node.name])
            and node.reachable
        }
        sessions = {name: self._session(name) for name in asked}
        states = {
            name: {
                program: containers.answered(done) for program, done in answer["commands"].items()
            }
            for name, answer in ask_each(sessions, "gather", asked).items()
        }
        nodes = [
            replace(node, containers={**states.get(node.name, {}), **node.containers})
            for node in self.nodes
        ]
        return replace(self, nodes=nodes)

    def _with_models(self, head: NodeState, models: Sequence[ModelServer]) -> Status:
        problems = self._unreachable()
        endpoint = running({}, head.description, self.key)
        if endpoint is None:
            problems.append(f"the proxy's description on {head.name} names no endpoint")
            return Status("failed", [*self.nodes], [], problems=tuple(problems))
        firewalls = {one.node: self._container(one).label(containers.FIREWALL) for one in models}
        guarded = [node for node, firewall in firewalls.items() if firewall == "present"]
        problems += [*self._open(guarded), *_of_proxy(head)]
        if any(one.on_request for one in models) and head.loader != "active":
            unit_is = head.loader or "not there"
            problems.append(f"what loads models on request ({LOADER_UNIT}) is {unit_is}")
        found = self._servers(models, endpoint)
        answer = any(one.state in ("serving", "on request") for one in found)
        loading = not problems and all(one.state == "loading" for one in found)
        problems += [one.problem for one in found if one.problem]
        asked = endpoint.request(self._session(head.name), "/health", timeout=HEALTH_S)
        return Status(
            _word(answer=answer, problems=problems, loading=loading),
            [*self.nodes],
            [],
            **_access(head, endpoint, asked.certificate),
            problems=tuple(problems),
            models=found,
        )

    # -- each of several servers -------------------------------------------------------------------

    def _servers(
        self, servers: Sequence[Replica], through: Endpoint | None = None
    ) -> tuple[Any, ...]:
        """Return the state of each server: a `ModelState` of one of several models.

        Args:
            through: the endpoint that is asked for each model; None: each server by itself.
        """
        jobs = {
            str(number): partial(self._look_at_one, server, self._container(server), through)
            for number, server in enumerate(servers)
        }
        found: dict[str, Any] = in_parallel(jobs)
        return tuple(
            self._made(server, "unreachable", f"{_name(server)}: {outcome.message}")
            if isinstance(outcome, SparkClusterError)
            else self._made(server, *outcome)
            for server, outcome in zip(servers, found.values(), strict=True)
        )

    def _made(self, server: Replica, word: Word, problem: str) -> ServerState:
        about = (server.node, server.url, word, problem)
        if not isinstance(server, ModelServer):
            return ServerState(*about)
        recipe = self._container(server).label(containers.RECIPE)
        return ModelState(*about, server.model, server.names[1:], server.kind, recipe)

    def _container(self, server: Replica) -> ContainerState:
        """Return the program of a server; `unknown` where its node was not asked."""
        node = self.known.get(server.node)
        return NOT_ASKED if node is None else node.containers.get(server.program, NOT_ASKED)

    def _look_at_one(
        self, server: Replica, container: ContainerState, through: Endpoint | None
    ) -> tuple[Word, str]:
        state, completion = judge(container), None
        if state.serves:
            session, serving = self._session(server.node), engine_of(container)
            own = Endpoint(server.address, server.port, container.label(containers.MODEL))
            state, health = runtime.ask_health(serving, own, session, container)
            if state.serves:
                if through is not None and isinstance(server, ModelServer) and self.head:
                    session = self._session(self.head.name)
                    own = replace(through, model=server.model)
                kind, probe = container.kind, self.probe
                completion = probe_once(session, own, kind, probe, timeout=COMPLETION_S)
                state = judge_health(serving, health.status, container, completion)
        word = WORDS.get(state.life, "failed")
        if state.serves or state.life is Life.UNLOADED:  # asked for an answer, it would be loaded
            return word, ""
        if isinstance(server, ModelServer):
            return word, self._of_model(server, state, completion)
        why = state.of(_name(server), f"{_name(server)}: ")
        if completion is not None:
            why = f"{_name(server)}: /health is fine, but no answer comes: {completion.fault}"
        elif not container.running and word == "failed":
            code = f" ({container.exit_code})" if state.life is Life.ENDED else ""
            why += f"{code}; the endpoint does without it"
        return word, why

    def _of_model(self, server: ModelServer, state: State, completion: Completion | None) -> str:
        """Return what is wrong with the server of a model, with the first error of its log."""
        if state.life is Life.LOADING and server.on_request:
            return ""
        if completion is not None:
            why = unanswered(server.kind, completion, how="through the endpoint ")
            return f"{_name(server)}: {why}"
        cause = ""
        if state.life is Life.ENDED:
            log = runtime.read_log(self._session(server.node), server.program)
            fault = runtime.first_error({server.node: log})
            cause = f", its log says: {fault.text}" if fault else ""
        prefix = f"{_name(server)}: "
        return state.of(f"{prefix}its server", prefix) + cause


# What is said of it, in words.


def _by_labels(server: ContainerState) -> dict[str, Any]:
    """Return the parts of a status that a server's labels tell."""
    return {
        "model": server.label(containers.MODEL) or None,
        "tp": server.number(containers.TP, 1),
        "kind": server.kind,
        "overrides": server.label(containers.OVERRIDES),
        "tuned": tuple(server.label(tuning.TUNED_LABEL).split()),
        "data_parallel": server.number(containers.DATA_PARALLEL, 1),
        "recipe": server.label(containers.RECIPE) or None,
        "since": f"{server.started[:19]}Z" if server.running and server.started else None,
    }


def _access(head: NodeState, endpoint: Endpoint | None, fingerprint: str) -> dict[str, Any]:
    """Return the parts of a status on the address, as the proxy's own file says it."""
    access = described(head.description) or (Access(endpoint.url) if endpoint is not None else None)
    if access is None:
        return {}
    return {"endpoint": access.url, "access": replace(access, fingerprint=fingerprint)}


def _of_proxy(head: NodeState) -> list[str]:
    """Return what is wrong with the proxy in front of the engine, where there is one."""
    if head.description is None or head.proxy == "active":
        return []
    unit_is = head.proxy or "not there"
    return [f"the proxy in front of vLLM ({UNIT}) is {unit_is} on {head.name}"]


def _never_started(server: ContainerState) -> bool:
    """Return whether a run ended between making and starting it: a start that failed has a code."""
    return server.status == "created" and not server.exit_code


def _word(*, answer: bool, problems: list[str], loading: bool) -> str:
    if answer:
        return "degraded" if problems else "serving"
    return "starting" if loading else "failed"


def _of_ray(nodes: Sequence[RayNode], size: int) -> list[str]:
    """Return what Ray lacks of the nodes and GPUs of a server over `size` nodes."""
    gpus = sum(node.gpus for node in nodes)
    if len(nodes) < size:
        return [f"Ray shows {len(nodes)} of {size} nodes"]
    return [f"Ray shows {gpus:g} of {size} GPUs"] if gpus < size else []


def _restarted(session: Session, head: str, times: int) -> str:
    """Return that the server does not stay up, with the first error in its log."""
    fault = runtime.first_error({head: runtime.read_log(session, SERVER)})
    cause = f", its log says: {fault.text}" if fault else ""
    known = fault.known if fault else None
    fix = f"; {known.title} ({known.id}): {known.fix}" if known else ""
    return f"the server has been restarted {counted(times, 'time')}{cause}{fix}"


def _unanswered(
    endpoint: Endpoint | None,
    health: Answer,
    completion: Completion | None,
    kind: ModelKind,
    limit: float,
) -> str:
    """Return why the endpoint gives no completion."""
    if endpoint is None:
        return "/health was not queried: the container's label names no endpoint"
    if completion is None:
        return f"/health does not return 200 ({health.status or 'no answer'})"
    within = f" within {limit:g} s" if completion.status == 0 else ""
    return unanswered(kind, completion, within=within)


def unanswered(kind: ModelKind, completion: Completion, *, how: str = "", within: str = "") -> str:
    """Return that a healthy server gives no answer, and why.

    Args:
        how: it was asked, where that is not the plain endpoint.
        within: the time that it had, where that is over.
    """
    if completion.status == 401:
        return "the endpoint asks for another API key than this inventory's"
    what = f"/health is fine, but {how}{ANSWERS[kind]} does not come{within}"
    return f"{what}: {completion.fault}"


def _name(server: Replica) -> str:
    if isinstance(server, ModelServer):
        return f"{server.model} on {server.node}"
    return f"the replica on {server.node}"
