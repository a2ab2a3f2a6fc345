"""The state of each node for `status`: its serving containers, its firewall, its proxy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_cluster.engine import firewall, runtime
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION, LOADER_UNIT, UNIT
from spark_cluster.node import unit_state
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.play import Play

if TYPE_CHECKING:
    from spark_cluster.engine.launches import Asked, Upcoming


@dataclass(frozen=True)
class NodeState:
    """The state of one node: its serving containers, or why it could not be asked.

    Attributes:
        firewall: what is wrong with it; nothing when it is in force.
        proxy: state of the proxy's unit, as systemd calls it.
        loader: that of the unit that loads models on request.
        description: what the proxy's own file says of the endpoint; None without such a file.
        caches: what it was asked about the next launch; None where it was not.
    """

    name: str
    reachable: bool
    containers: dict[str, ContainerState] = field(default_factory=dict)
    error: str = ""
    firewall: str = ""
    proxy: str = ""
    loader: str = ""
    description: str | None = None
    caches: Asked | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reachable": self.reachable,
            "containers": {
                name: {"status": c.status, "exit_code": c.exit_code, "restarts": c.restarts}
                for name, c in self.containers.items()
            },
            **({"error": self.error} if self.error else {}),
        }


def ask(play: Play, upcoming: Upcoming | None) -> list[NodeState]:
    """Ask all nodes in parallel; one that is not reached has its error."""
    found = []
    here = {node.name for node in play.nodes}
    names = list(play.connections.nodes)
    reachable = [(name, play.connections.session(name)) for name in names if name in here]
    caches = {name: upcoming.ask(name, s) for name, s in reachable} if upcoming else {}
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
        outputs = {n: d["stdout"] if d else "" for n, d in commands.items()}
        found.append(
            NodeState(
                name,
                True,
                {n: unit_state.answered(commands[n]) for n in (SERVER, RAY)},
                firewall=firewall.wrong_with(commands["firewall"], files["firewall"]),
                proxy=outputs[UNIT].strip(),
                loader=outputs[LOADER_UNIT].strip(),
                description=files["endpoint"],
                caches=caches.get(name),
            )
        )
    return found
