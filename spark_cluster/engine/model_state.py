"""The state of each of several models: its server, its own /health, an answer by the endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.engine import logs, runtime, unit_state
from spark_cluster.engine.containers import FIREWALL, RECIPE, ContainerState
from spark_cluster.engine.kind_probe import ANSWERS
from spark_cluster.engine.node_states import MANY_RESTARTS, NodeState
from spark_cluster.engine.proxy import ModelServer
from spark_cluster.engine.readiness import Reply
from spark_cluster.engine.replica_state import HEALTH_S
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play

State = Literal["serving", "on request", "loading", "failed", "unreachable"]


@dataclass(frozen=True)
class ModelState:
    """The state of one of several models.

    Attributes:
        model: the name to ask for; `aliases` are others.
        recipe: that its server was started with; empty where that is not known.
        node: name of its node.
        url: its server's own OpenAI base URL, which the proxy asks.
        state: `serving` (an answer came through the endpoint), `loading` (its program runs, and
            does not take requests yet), `on request` (it is loaded when it is asked for), `failed`
            or `unreachable` (its node).
        problem: what is wrong, as text; empty when nothing is.
    """

    model: str
    aliases: tuple[str, ...]
    kind: ModelKind
    recipe: str
    node: str
    url: str
    state: State
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        return {
            "model": self.model,
            "aliases": list(self.aliases),
            "kind": self.kind,
            "recipe": self.recipe,
            "node": self.node,
            "url": self.url,
            "state": self.state,
        }


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
            states = {n: unit_state.parse(d["stdout"] if d else "") for n, d in asked.items()}
        found.append(replace(node, containers={**states, **node.containers}))
    return found


def look(
    play: Play,
    models: Sequence[ModelServer],
    nodes: Mapping[str, NodeState],
    ask: Callable[[ModelServer], Reply],
) -> tuple[ModelState, ...]:
    """Look at every model.

    Args:
        nodes: by name, as `with_servers` returns them.
        ask: makes one request for a model, through the endpoint.
    """

    def one(server: ModelServer) -> ModelState:
        node = nodes.get(server.node)
        container = node.containers.get(server.program) if node is not None else None
        state, problem = _of_server(play, server, container)
        if state == "serving" and (why := _of_answer(server, ask(server))):
            state, problem = "failed", why
        return _made(server, container, state, problem)

    found: dict[str, Any] = in_parallel({server.program: partial(one, server) for server in models})
    return tuple(
        value
        if isinstance(value := found[server.program], ModelState)
        else _made(server, None, "unreachable", str(value.message))
        for server in models
    )


def is_guarded(node: NodeState, program: str) -> bool:
    """Return whether a program on a node was started behind the firewall."""
    state = node.containers.get(program)
    return state is not None and state.labels.get(FIREWALL) == "present"


def _made(
    server: ModelServer, container: ContainerState | None, state: State, problem: str
) -> ModelState:
    return ModelState(
        server.model,
        server.names[1:],
        server.kind,
        container.labels.get(RECIPE, "") if container is not None else "",
        server.node,
        server.url,
        state,
        f"{server.model} on {server.node}: {problem}" if problem else "",
    )


def _of_server(
    play: Play, server: ModelServer, container: ContainerState | None
) -> tuple[State, str]:
    """The state of a server, and what is wrong with it."""
    if container is None:
        return "unreachable", "not asked: the node does not answer"
    if container.status != "running":
        if container.unloaded:
            return "on request", ""  # asked for an answer, it would be loaded
        if container.status == "absent":
            return "failed", "its server is gone"
        return "failed", f"its server is {container.in_words}{_cause(play, server)}"
    return _of_running(play, server, container)


def _of_running(play: Play, server: ModelServer, container: ContainerState) -> tuple[State, str]:
    session = play.connections.session(server.node)
    answer = session.http(f"http://{server.address}:{server.port}/health", timeout=HEALTH_S)
    if answer.status == 200:
        return "serving", ""
    if answer.status:
        return "failed", f"/health does not return 200 ({answer.status})"
    if container.restarts < MANY_RESTARTS:
        slow = "its server takes no requests yet: it is loading"
        return "loading", "" if server.on_request else slow
    often = f"its server has been restarted {container.restarts} times and takes no requests"
    return "failed", f"{often}{_cause(play, server)}"


def _cause(play: Play, server: ModelServer) -> str:
    """The first error of a server's log; empty without one."""
    log = logs.read(play.connections.session(server.node), server.program)
    fault = logs.first_error({server.node: log})
    return f", its log says: {fault.text}" if fault else ""


def _of_answer(server: ModelServer, reply: Reply) -> str:
    """What is wrong with an answer; empty when nothing is."""
    if reply.text or (reply.status == 200 and not reply.why):
        return ""
    if reply.status == 401:
        return "the endpoint asks for another API key than this inventory's"
    what = f"/health is fine, but through the endpoint {ANSWERS[server.kind]} does not come"
    return f"{what}: {reply.why or 'no answer in time'}"
