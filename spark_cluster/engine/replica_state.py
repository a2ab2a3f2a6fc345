"""The state of each replica behind the endpoint: its program, its own /health and an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from spark_cluster.engine.containers import ContainerState
from spark_cluster.engine.node_states import MANY_RESTARTS
from spark_cluster.engine.proxy import Replica
from spark_cluster.engine.readiness import Reply
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

HEALTH_S = 5.0
"""Seconds for the answer of /health: as long as the proxy waits for it."""


Asking = Callable[[Session, Replica], Reply]
"""Asks a replica itself for a completion: its API outlives an engine that has died."""


@dataclass(frozen=True)
class ReplicaState:
    """The state of one replica.

    Attributes:
        node: name of its node.
        url: its own OpenAI base URL, which the proxy asks.
        state: `serving` (it has answered itself), `loading` (its program runs, and does not take
            requests yet), `failed` or `unreachable` (its node).
        problem: what is wrong, as text; empty when nothing is.
    """

    node: str
    url: str
    state: Literal["serving", "loading", "failed", "unreachable"]
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        return {"node": self.node, "url": self.url, "state": self.state}


def look(
    play: Play,
    replicas: Sequence[Replica],
    servers: Mapping[str, ContainerState | None],
    ask: Asking,
) -> tuple[ReplicaState, ...]:
    """Look at every replica, each asked on its own node.

    Args:
        servers: node to the state of its server; None where the node did not answer.
    """
    jobs = {r.node: partial(_state, play, r, servers.get(r.node), ask) for r in replicas}
    found: dict[str, Any] = in_parallel(jobs)
    return tuple(
        value
        if isinstance(value := found[r.node], ReplicaState)
        else ReplicaState(r.node, r.url, "unreachable", f"the replica on {r.node}: {value.message}")
        for r in replicas
    )


def _unanswered(reply: Reply) -> str:
    """Return what is wrong with the answer to a completion; empty when nothing is."""
    why = reply.why or f"status {reply.status}"
    return "" if reply.text else f"/health is fine, but no answer comes: {why}"


def _state(
    play: Play, replica: Replica, server: ContainerState | None, ask: Asking
) -> ReplicaState:
    node = replica.node
    made = partial(ReplicaState, node, replica.url)
    if server is None:
        return made("unreachable", f"the replica on {node} was not asked: the node does not answer")
    if server.status != "running":
        what = "gone" if server.status == "absent" else f"{server.in_words} ({server.exit_code})"
        return made("failed", f"the replica on {node} is {what}; the endpoint does without it")
    session = play.connections.session(node)
    answer = session.http(f"http://{replica.address}:{replica.port}/health", timeout=HEALTH_S)
    if answer.status == 200:
        why = _unanswered(ask(session, replica))
        return made("failed", f"the replica on {node}: {why}") if why else made("serving")
    if answer.status == 0:
        if server.restarts >= MANY_RESTARTS:
            often = f"has been restarted {server.restarts} times and takes no requests"
            return made("failed", f"the replica on {node} {often}")
        return made("loading", f"the replica on {node} takes no requests yet: it is loading")
    return made("failed", f"the replica on {node}: /health does not return 200 ({answer.status})")
