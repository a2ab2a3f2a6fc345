"""What Ray says of its cluster: its own State API, through an SSH tunnel to the head's loopback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_cluster.engine.transport import SshConnection
from spark_cluster.engine.tunnel import Tunnel


@dataclass(frozen=True)
class RayNode:
    """A node that is alive for Ray; `gpus` as declared to it."""

    address: str
    is_head: bool
    gpus: float


class RayState:
    """A tunnel to one head's dashboard; use as a context manager."""

    def __init__(self, connection: SshConnection, port: int) -> None:
        self._tunnel = Tunnel(connection, port)

    def __enter__(self) -> RayState:
        self._tunnel.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._tunnel.__exit__(*exc)

    def nodes(self) -> list[RayNode]:
        """The nodes that are alive; empty when Ray does not answer (yet)."""
        from ray.util.state import list_nodes

        try:
            listed: list[Any] = list_nodes(
                address=f"http://127.0.0.1:{self._tunnel.port}",
                timeout=5,
                raise_on_missing_output=False,
            )
        except Exception:  # noqa: BLE001  (ray raises RuntimeError, requests' and its own kinds)
            return []
        return [
            RayNode(n.node_ip, n.is_head_node, float(n.resources_total.get("GPU", 0.0)))
            for n in listed
            if n.state == "ALIVE"
        ]
