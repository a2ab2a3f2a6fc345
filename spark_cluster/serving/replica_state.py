"""The state of each replica behind the endpoint: its program, and what its own /health says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from spark_cluster.inference.containers import ContainerState
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play
from spark_cluster.serving.node_states import MANY_RESTARTS
from spark_cluster.serving.proxy import Replica

HEALTH_S = 5.0
"""Seconds for the answer of /health: as long as the proxy waits for it."""


@dataclass(frozen=True)
class ReplicaState:
    """The state of one replica.

    Attributes:
        node: name of its node.
        url: its own OpenAI base URL, which the proxy asks.
        state: `serving`, `loading` (its program runs, and does not take requests yet), `failed`
            or `unreachable` (its node).
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
    play: Play, replicas: Sequence[Replica], servers: Mapping[str, ContainerState | None]
) -> tuple[ReplicaState, ...]:
    """Look at every replica, each asked on its own node.

    Args:
        servers: node to the state of its server; None where the node did not answer.
    """
    jobs = {r.node: partial(_state, play, r, servers.get(r.node)) for r in replicas}
    found: dict[str, Any] = in_parallel(jobs)
    return tuple(
        value
        if isinstance(value := found[r.node], ReplicaState)
        else ReplicaState(r.node, r.url, "unreachable", f"the replica on {r.node}: {value.message}")
        for r in replicas
    )


def _state(play: Play, replica: Replica, server: ContainerState | None) -> ReplicaState:
    node = replica.node
    made = partial(ReplicaState, node, replica.url)
    if server is None:
        return made("unreachable", f"the replica on {node} was not asked: the node does not answer")
    if server.status != "running":
        what = "gone" if server.status == "absent" else f"{server.status} ({server.exit_code})"
        return made("failed", f"the replica on {node} is {what}; the endpoint does without it")
    answer = play.connections.session(node).http(
        f"http://{replica.address}:{replica.port}/health", timeout=HEALTH_S
    )
    if answer.status == 200:
        return made("serving")
    if answer.status == 0:
        if server.restarts >= MANY_RESTARTS:
            often = f"has been restarted {server.restarts} times and takes no requests"
            return made("failed", f"the replica on {node} {often}")
        return made("loading", f"the replica on {node} takes no requests yet: it is loading")
    return made("failed", f"the replica on {node}: /health does not return 200 ({answer.status})")
