"""The state of serving and its problems: containers, Ray, health, a completion, put together.

So is the state of each server behind an endpoint that has several: replicas, or models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spark_cluster.config.recipe_schema import ModelKind, Probe
from spark_cluster.engine import runtime, tuning
from spark_cluster.engine.deployment import ANSWERS, Endpoint, probe_once, running, short
from spark_cluster.engine.engine import engine_of, judge_health
from spark_cluster.engine.launches import Upcoming, Warmth
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
from spark_cluster.engine.runtime import ask_health
from spark_cluster.errors import SparkClusterError
from spark_cluster.node import containers
from spark_cluster.node.containers import (
    DATA_PARALLEL,
    FIREWALL,
    MODEL,
    NODES,
    OVERRIDES,
    RECIPE,
    TP,
    ContainerState,
)
from spark_cluster.node.health import HEALTH_S, Completion, Life, State, judge
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Answer, Session, ask_each

COMPLETION_S = 10.0
"""Seconds for the completion of `status`: a server with many requests answers later than one
without, but who asks for the status waits."""

WITHOUT_LINK_S = 2.0
"""The same when the link is down: ranks that were joined over it wait for each other for ever."""


def status(
    play: Play, endpoint_key: str | None, probe: Probe, upcoming: Upcoming | None = None
) -> Status:
    """Look at everything; nothing is changed.

    Args:
        endpoint_key: the endpoint's API key, when it has one.
        probe: the question of the completion.
        upcoming: what is started next; None leaves the caches out.
    """
    nodes = ask_nodes(play)
    if upcoming is None:
        return _serving_state(play, nodes, endpoint_key, probe)
    now: Status
    now, caches = play.together(
        partial(_serving_state, play, nodes, endpoint_key, probe),
        partial(_warmth, play, nodes, upcoming),
    )
    return replace(now, caches=caches)


def _warmth(play: Play, nodes: list[NodeState], upcoming: Upcoming) -> Warmth:
    """Judge the next launch at the size at which the recipe runs, else at its usual one."""
    server = _server(play, {node.name: node for node in nodes})
    tp = upcoming.recipe.size_for(len(nodes))
    if server is not None and server.label(RECIPE) == upcoming.recipe.name:
        tp = server.number(TP, tp)
    _, chosen = _serving(play, upcoming.recipe.nodes_for(tp))
    return upcoming.on(play, [node for node in play.nodes if node.name in chosen], tp)


def _serving_state(
    play: Play, nodes: list[NodeState], endpoint_key: str | None, probe: Probe
) -> Status:
    known = {node.name: node for node in nodes}
    head = next((known[node.name] for node in play.nodes if node.is_head), None)
    if head and (models := models_of(head.description)):
        return _with_models(play, nodes, models, endpoint_key, probe)
    server = _server(play, known)
    if server is None or head is None:
        return _without_server(play, nodes)
    return _with_server(play, nodes, head, server, key=endpoint_key, probe=probe)


def _with_server(
    play: Play,
    nodes: list[NodeState],
    head: NodeState,
    server: ContainerState,
    *,
    key: str | None,
    probe: Probe,
) -> Status:
    """The state where one server answers, or replicas of one model."""
    behind = replicas_of(head.description)
    size = server.number(NODES, server.number(TP, 1))
    dark = _without_link(play, size)
    endpoint = running(server.labels, head.description, key)
    limit = WITHOUT_LINK_S if dark else COMPLETION_S
    session = play.connections.session(head.name)
    known = {node.name: node for node in nodes}
    ray, replicas, (health, completion) = play.together(
        # Without the link Ray knows no node, which says nothing new and takes its time.
        lambda: _ray(play, head.name, server) if server.on_ray and not dark else None,
        lambda: look_at(play, behind, known, probe),
        lambda: _asked(server, session, endpoint, probe, limit),
    )
    problems = [
        *(f"no ConnectX-7 interface of {name} is up: is the cable in?" for name in dark),
        *_problems(play, nodes, server, size, ray, behind=behind),
        *(replica.problem for replica in replicas if replica.problem),
        *_of_proxy(head),
    ]
    loading_too = {one.problem for one in replicas if one.state == "loading"}
    of_nodes = set(problems) - loading_too
    found = judge_health(engine_of(server), health.status, None, completion)
    if not found.serves:
        problems.append(_unanswered(endpoint, health, completion, server.kind, limit))
    if health.status == 0 and server.restarts and not behind:
        problems.append(_restarted(session, head.name, server.restarts))
    if not found.serves and server.on_ray:
        problems += _ray_restarted(play, nodes, size)
    life = judge_health(engine_of(server), health.status, server).life
    loads = endpoint is not None and life is Life.LOADING and not of_nodes
    return Status(
        _state(answer=found.serves, problems=problems, loading=loads),
        nodes,
        ray or [],
        **_access(head, endpoint, health.certificate),
        **_by_labels(server),
        problems=tuple(problems),
        replicas=replicas,
    )


def _by_labels(server: ContainerState) -> dict[str, Any]:
    """Return the parts of a status that a server's labels tell."""
    return {
        "model": server.label(MODEL) or None,
        "tp": server.number(TP, 1),
        "kind": server.kind,
        "overrides": server.label(OVERRIDES),
        "tuned": tuple(server.label(tuning.TUNED_LABEL).split()),
        "data_parallel": server.number(DATA_PARALLEL, 1),
        "recipe": server.label(RECIPE) or None,
        "since": f"{server.started[:19]}Z" if server.running and server.started else None,
    }


def _with_models(
    play: Play,
    nodes: list[NodeState],
    models: Sequence[ModelServer],
    endpoint_key: str | None,
    probe: Probe,
) -> Status:
    """The state where the endpoint has several models."""
    nodes = with_servers(play, nodes, models)
    known = {node.name: node for node in nodes}
    head = known[_head(play)]
    problems = _unreachable(nodes)
    endpoint = running({}, head.description, endpoint_key)
    if endpoint is None:
        problems.append(f"the proxy's description on {head.name} names no endpoint")
        return Status("failed", nodes, [], problems=tuple(problems))
    guarded = [one.node for one in models if container_of(one, known).label(FIREWALL) == "present"]
    problems += [*_open(nodes, guarded), *_of_proxy(head)]
    if any(one.on_request for one in models) and head.loader != "active":
        unit_is = head.loader or "not there"
        problems.append(f"what loads models on request ({LOADER_UNIT}) is {unit_is}")
    found = look_at(play, models, known, probe, endpoint)
    answer = any(one.state in ("serving", "on request") for one in found)
    loading = not problems and all(one.state == "loading" for one in found)
    problems += [one.problem for one in found if one.problem]
    asked = endpoint.request(play.connections.session(head.name), "/health", timeout=HEALTH_S)
    return Status(
        _state(answer=answer, problems=problems, loading=loading),
        nodes,
        [],
        **_access(head, endpoint, asked.certificate),
        problems=tuple(problems),
        models=found,
    )


def _access(head: NodeState, endpoint: Endpoint | None, fingerprint: str) -> dict[str, Any]:
    """Return the parts of a status on the address, as the proxy's own file says it."""
    access = described(head.description) or (Access(endpoint.url) if endpoint is not None else None)
    if access is None:
        return {}
    return {"endpoint": access.url, "access": replace(access, fingerprint=fingerprint)}


def _unreachable(nodes: Sequence[NodeState]) -> list[str]:
    return [f"{n.name} cannot be reached: {n.error}" for n in nodes if not n.reachable]


def _open(nodes: Sequence[NodeState], guarded: Collection[str]) -> list[str]:
    """Return what is wrong with the firewall on the nodes that should have one."""
    return [
        f"the firewall of the engine's ports on {node.name}: {node.firewall}"
        for node in nodes
        if node.firewall and node.name in guarded
    ]


def _of_proxy(head: NodeState) -> list[str]:
    """Return what is wrong with the proxy in front of the engine, where there is one."""
    if head.description is None or head.proxy == "active":
        return []
    unit_is = head.proxy or "not there"
    return [f"the proxy in front of vLLM ({UNIT}) is {unit_is} on {head.name}"]


def _state(*, answer: bool, problems: list[str], loading: bool) -> str:
    if answer:
        return "degraded" if problems else "serving"
    return "starting" if loading else "failed"


def _head(play: Play) -> str:
    return next(node.name for node in play.nodes if node.is_head)


def _server(play: Play, known: dict[str, NodeState]) -> ContainerState | None:
    """Return the head's server, or the first replica's that there is."""
    head = next((node.name for node in play.nodes if node.is_head), None)
    if head is None:
        return None
    names = [head, *(replica.node for replica in replicas_of(known[head].description))]
    states = [known[name].containers.get(SERVER) for name in names if name in known]
    return next((s for s in states if s is not None and s.status != "absent"), None)


def _without_server(play: Play, nodes: list[NodeState]) -> Status:
    rays = {n.name: n.containers[RAY] for n in nodes if n.reachable}
    left = {name: ray for name, ray in rays.items() if ray.status != "absent"}
    problems, found = _unreachable(nodes), list[RayNode]()
    if left and all(ALONE.items() <= ray.labels.items() for ray in left.values()):
        head = left.get(_head(play))
        found = _ray(play, _head(play), head) if head is not None else []
    elif left:
        problems.append(f"Ray runs without a server, on {', '.join(left)}")
    return Status("failed" if problems else "stopped", nodes, found, problems=tuple(problems))


def _ray(play: Play, head: str, server: ContainerState) -> list[RayNode]:
    return RayState(play.connections.session(head), dashboard_port(server)).nodes()


def _problems(
    play: Play,
    nodes: list[NodeState],
    server: ContainerState,
    size: int,
    ray: list[RayNode] | None,
    *,
    behind: Sequence[Replica],
) -> list[str]:
    """Return what is wrong, in words.

    Args:
        ray: its nodes; None when it was not asked.
        behind: the replicas, whose own problems are told elsewhere.
    """
    problems = _unreachable(nodes)
    if server.status != "running" and not behind:
        code = "0, as when its engine died" if server.exit_code == 0 else server.exit_code
        problems.append(f"the server is {server.in_words} (exit code {code})")
    heads, wanted = _serving(play, size)
    wanted = [replica.node for replica in behind] or wanted
    if server.label(FIREWALL) == "present":
        problems += _open(nodes, wanted)
    if size == 1:
        return problems
    on_ray = server.on_ray
    name, whose = (RAY, "Ray's container") if on_ray else (SERVER, "the rank's container")
    for node in nodes:
        state = node.containers.get(name)
        checked = node.name in wanted and (on_ray or node.name not in heads)
        if checked and state is not None and state.status != "running":
            what = "gone" if state.status == "absent" else state.in_words
            problems.append(f"{whose} on {node.name} is {what}")
    return problems if ray is None else [*problems, *_of_ray(ray, size)]


def _of_ray(nodes: Sequence[RayNode], size: int) -> list[str]:
    """Return what Ray lacks of the nodes and GPUs of a server over `size` nodes."""
    gpus = sum(node.gpus for node in nodes)
    if len(nodes) < size:
        return [f"Ray shows {len(nodes)} of {size} nodes"]
    return [f"Ray shows {gpus:g} of {size} GPUs"] if gpus < size else []


def _serving(play: Play, size: int) -> tuple[list[str], list[str]]:
    """The heads, and the nodes that serve where so many do."""
    heads = [n.name for n in play.nodes if n.is_head]
    return heads, sorted(play.connections.nodes, key=lambda name: name not in heads)[:size]


def _without_link(play: Play, size: int) -> list[str]:
    """Nodes that serve together with others, and whose ConnectX-7 interfaces are all down."""
    _, wanted = _serving(play, size)
    hcas = {node.name: node.facts.hcas for node in play.nodes if node.name in wanted}
    return [n for n, found in hcas.items() if size > 1 and found and not any(h.up for h in found)]


def _ray_restarted(play: Play, nodes: list[NodeState], size: int) -> list[str]:
    """Return where Ray was started again, which ends the server: why one that served loads."""
    _, wanted = _serving(play, size)
    times = {n.name: n.containers[RAY].restarts for n in nodes if n.name in wanted and n.reachable}
    return [
        f"Ray's container on {name} has been restarted {count} times; a server that had its "
        "workers there is started again"
        for name, count in times.items()
        if count
    ]


def _restarted(session: Session, head: str, times: int) -> str:
    """Return that the server does not stay up, with the first error in its log."""
    fault = runtime.first_error({head: runtime.read_log(session, SERVER)})
    cause = f", its log says: {fault.text}" if fault else ""
    known = fault.known if fault else None
    fix = f"; {known.title} ({known.id}): {known.fix}" if known else ""
    return f"the server has been restarted {times} times{cause}{fix}"


def _asked(
    server: ContainerState,
    session: Session,
    endpoint: Endpoint | None,
    probe: Probe,
    limit: float,
) -> tuple[Answer, Completion | None]:
    """Return the answer of /health, status 0 without an endpoint; and a completion, where asked."""
    if endpoint is None:
        return Answer(0, ""), None
    life, health = ask_health(engine_of(server), endpoint, session)
    if not life.serves:
        return health, None
    return health, probe_once(session, endpoint, server.kind, short(probe), timeout=limit)


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


WORDS: Mapping[Life, Word] = {
    Life.SERVING: "serving",
    Life.UNLOADED: "on request",
    Life.LOADING: "loading",
    Life.UNSEEN: "unreachable",
}
"""What users read; of the others `failed`."""

NOT_ASKED = ContainerState("unknown", error="the node does not answer")


def with_servers(
    play: Play, nodes: Sequence[NodeState], models: Sequence[ModelServer]
) -> list[NodeState]:
    """Return the nodes with the servers of the models among their containers."""
    names = {
        node.name: [one.program for one in models if one.node == node.name]
        for node in nodes
        if node.reachable
    }
    asked = {
        name: {"commands": {program: runtime.question(program) for program in programs}}
        for name, programs in names.items()
        if programs
    }
    sessions = {name: play.connections.session(name) for name in asked}
    states = {
        name: {program: containers.answered(done) for program, done in answer["commands"].items()}
        for name, answer in ask_each(sessions, "gather", asked).items()
    }
    return [
        replace(node, containers={**states.get(node.name, {}), **node.containers}) for node in nodes
    ]


def look_at(
    play: Play,
    servers: Sequence[Replica],
    nodes: Mapping[str, NodeState],
    probe: Probe,
    through: Endpoint | None = None,
) -> tuple[Any, ...]:
    """Return the state of each server: a `ModelState` of one of several models.

    Args:
        nodes: by name, with the containers of the servers.
        probe: the question that each has to answer, as its API outlives its engine.
        through: the endpoint that is asked for each model; None: each server by itself.
    """
    states = [container_of(server, nodes) for server in servers]
    jobs = {
        str(number): partial(_look_at_one, play, server, state, short(probe), through)
        for number, (server, state) in enumerate(zip(servers, states, strict=True))
    }
    found: dict[str, Any] = in_parallel(jobs)
    return tuple(
        _made(server, nodes, "unreachable", f"{_name(server)}: {outcome.message}")
        if isinstance(outcome, SparkClusterError)
        else _made(server, nodes, *outcome)
        for server, outcome in zip(servers, found.values(), strict=True)
    )


def _made(server: Replica, nodes: Mapping[str, NodeState], word: Word, problem: str) -> ServerState:
    if not isinstance(server, ModelServer):
        return ServerState(server.node, server.url, word, problem)
    return ModelState(
        *(server.node, server.url, word, problem, server.model, server.names[1:], server.kind),
        container_of(server, nodes).label(RECIPE),
    )


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


def container_of(server: Replica, nodes: Mapping[str, NodeState]) -> ContainerState:
    """Return the program of a server; `unknown` where its node was not asked."""
    node = nodes.get(server.node)
    return NOT_ASKED if node is None else node.containers.get(server.program, NOT_ASKED)


def _look_at_one(
    play: Play,
    server: Replica,
    container: ContainerState,
    probe: Probe,
    through: Endpoint | None,
) -> tuple[Word, str]:
    state, completion = judge(container), None
    if state.serves:
        session, serving = play.connections.session(server.node), engine_of(container)
        own = Endpoint(server.address, server.port, container.label(MODEL))
        state, health = ask_health(serving, own, session, container)
        if state.serves:
            if through is not None and isinstance(server, ModelServer):
                session = play.connections.session(_head(play))
                own = replace(through, model=server.model)
            completion = probe_once(session, own, container.kind, probe, timeout=COMPLETION_S)
            state = judge_health(serving, health.status, container, completion)
    word = WORDS.get(state.life, "failed")
    if state.serves or state.life is Life.UNLOADED:  # asked for an answer, it would be loaded
        return word, ""
    if isinstance(server, ModelServer):
        return word, _of_model(play, server, state, completion)
    why = state.of(_name(server), f"{_name(server)}: ")
    if completion is not None:
        why = f"{_name(server)}: /health is fine, but no answer comes: {completion.fault}"
    elif not container.running and word == "failed":
        code = f" ({container.exit_code})" if state.life is Life.ENDED else ""
        why += f"{code}; the endpoint does without it"
    return word, why


def _of_model(play: Play, server: ModelServer, state: State, completion: Completion | None) -> str:
    """Return what is wrong with the server of a model, with the first error of its log."""
    if state.life is Life.LOADING and server.on_request:
        return ""
    if completion is not None:
        why = unanswered(server.kind, completion, how="through the endpoint ")
        return f"{_name(server)}: {why}"
    cause = ""
    if state.life is Life.ENDED:
        log = runtime.read_log(play.connections.session(server.node), server.program)
        fault = runtime.first_error({server.node: log})
        cause = f", its log says: {fault.text}" if fault else ""
    prefix = f"{_name(server)}: "
    return state.of(f"{prefix}its server", prefix) + cause


def _name(server: Replica) -> str:
    if isinstance(server, ModelServer):
        return f"{server.model} on {server.node}"
    return f"the replica on {server.node}"
