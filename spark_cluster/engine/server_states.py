"""The state of each server behind an endpoint that has several: replicas, or models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.engine import logs, runtime
from spark_cluster.engine.endpoint import ANSWERS, Endpoint
from spark_cluster.engine.engine import ask_health, engine_of, judge_health
from spark_cluster.engine.proxy import ModelServer, Replica
from spark_cluster.engine.status import ModelState, NodeState, ServerState, Word
from spark_cluster.errors import SparkClusterError
from spark_cluster.node import unit_state
from spark_cluster.node.containers import RECIPE, ContainerState
from spark_cluster.node.health import Completion, Life, State, judge
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play

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
    waiting = {
        name: play.connections.session(name).submit(
            "gather", commands={program: runtime.question(program) for program in programs}
        )
        for name, programs in names.items()
        if programs
    }
    found = []
    for node in nodes:
        states = {}
        if node.name in waiting:
            asked = waiting[node.name].wait()["commands"]
            states = {n: unit_state.answered(d) for n, d in asked.items()}
        found.append(replace(node, containers={**states, **node.containers}))
    return found


def look(
    play: Play,
    servers: Sequence[Replica],
    nodes: Mapping[str, NodeState],
    ask: Callable[[Any], Completion],
) -> tuple[Any, ...]:
    """Return the state of each server: a `ModelState` of one of several models.

    Args:
        nodes: by name, with the containers of the servers.
        ask: makes one request that the server has to answer, as its API outlives its engine.
    """
    jobs = {
        str(number): partial(_look, play, server, container_of(server, nodes), ask)
        for number, server in enumerate(servers)
    }
    found: dict[str, Any] = in_parallel(jobs)
    return tuple(
        _made(server, nodes, "unreachable", f"{_name(server)}: {told.message}")
        if isinstance(told, SparkClusterError)
        else _made(server, nodes, *told)
        for server, told in zip(servers, found.values(), strict=True)
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


def _look(
    play: Play,
    server: Replica,
    container: ContainerState,
    ask: Callable[[Replica], Completion],
) -> tuple[Word, str]:
    state, completion = judge(container), None
    if state.serves:
        session = play.connections.session(server.node)
        serving, own = engine_of(container), Endpoint(server.address, server.port, "")
        state, health = ask_health(serving, own, session, container)
        if state.serves:
            completion = ask(server)
            state = judge_health(serving, health.status, container, completion)
    word = WORDS.get(state.life, "failed")
    if state.serves or state.life is Life.UNLOADED:  # asked for an answer, it would be loaded
        return word, ""
    if isinstance(server, ModelServer):
        return word, _of_model(play, server, state, completion)
    whole = state.of(_name(server), f"{_name(server)}: ")
    if completion is not None:
        whole = f"{_name(server)}: /health is fine, but no answer comes: {completion.fault}"
    elif not container.running and word == "failed":
        code = f" ({container.exit_code})" if state.life is Life.ENDED else ""
        whole += f"{code}; the endpoint does without it"
    return word, whole


def _of_model(play: Play, server: ModelServer, state: State, completion: Completion | None) -> str:
    """Return what is wrong with the server of a model, with the first error of its log."""
    if state.life is Life.LOADING and server.on_request:
        return ""
    if completion is not None:
        why = unanswered(server.kind, completion, how="through the endpoint ")
        return f"{_name(server)}: {why}"
    cause = ""
    if state.life is Life.ENDED:
        log = logs.read(play.connections.session(server.node), server.program)
        fault = logs.first_error({server.node: log})
        cause = f", its log says: {fault.text}" if fault else ""
    prefix = f"{_name(server)}: "
    return state.of(f"{prefix}its server", prefix) + cause


def _name(server: Replica) -> str:
    if isinstance(server, ModelServer):
        return f"{server.model} on {server.node}"
    return f"the replica on {server.node}"
