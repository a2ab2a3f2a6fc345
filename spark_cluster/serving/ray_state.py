"""What Ray says of its cluster: its own State API, through an SSH tunnel to the head's loopback."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_cluster.engine.transport import SshConnection


@dataclass(frozen=True)
class RayNode:
    """A node that is alive for Ray; `gpus` as declared to it."""

    address: str
    is_head: bool
    gpus: float


class RayState:
    """A tunnel to one head's dashboard; use as a context manager."""

    def __init__(self, connection: SshConnection, port: int) -> None:
        self._connection = connection
        self._port = port
        self._stack = contextlib.ExitStack()
        self._url = ""

    def __enter__(self) -> RayState:
        local = self._stack.enter_context(_tunnel(self._connection, self._port))
        self._url = f"http://127.0.0.1:{local}"
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def nodes(self) -> list[RayNode]:
        """The nodes that are alive; empty when Ray does not answer (yet)."""
        from ray.util.state import list_nodes

        try:
            listed: list[Any] = list_nodes(
                address=self._url, timeout=5, raise_on_missing_output=False
            )
        except Exception:  # noqa: BLE001  (ray raises RuntimeError, requests' and its own kinds)
            return []
        return [
            RayNode(n.node_ip, n.is_head_node, float(n.resources_total.get("GPU", 0.0)))
            for n in listed
            if n.state == "ALIVE"
        ]


@contextlib.contextmanager
def _tunnel(connection: SshConnection, port: int) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = int(probe.getsockname()[1])
    fabric = connection.open()
    with fabric.forward_local(local, remote_port=port, remote_host="127.0.0.1"):
        yield local
