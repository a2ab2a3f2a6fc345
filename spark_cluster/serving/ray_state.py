"""Ray as its own dashboard tells it, asked by the head over its loopback.

The dashboard is a port of the head's loopback only, and no port of the laptop leads to it: Ray runs
what anyone who reaches it asks for.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Protocol

from spark_cluster.engine.session import Answer, Session
from spark_cluster.resources.container import secret_path
from spark_cluster.serving.engine import RAY, RAY_TOKEN

TOKEN_FILE = secret_path(RAY, RAY_TOKEN)
"""Ray's token on a node: what its container was started with."""

TOKENS_SINCE = "2.52"
"""First Ray that can ask for a token (docs.ray.io, "Ray token authentication")."""


class Asker(Protocol):
    """What makes requests: a node's session."""

    def http(self, url: str, *, timeout: float = ..., bearer_file: str = ...) -> Answer: ...


@dataclass(frozen=True)
class RayNode:
    """A node that is alive for Ray; `gpus` as declared to it."""

    address: str
    is_head: bool
    gpus: float


@dataclass(frozen=True)
class RayState:
    """Questions to one head's dashboard.

    Args:
        session: the head's.
        port: of the dashboard, on its loopback.
    """

    session: Asker
    port: int

    def nodes(self) -> list[RayNode]:
        """The nodes that are alive; empty when Ray does not answer (yet)."""
        answer = self.ask("/api/v0/nodes")
        return parse_nodes(answer.body) if answer.status == 200 else []

    def ask(self, path: str, *, with_token: bool = True) -> Answer:
        """The dashboard's answer, as a client that has Ray's token, or as one that has none."""
        url = f"http://127.0.0.1:{self.port}{path}"
        return self.session.http(url, timeout=5, bearer_file=TOKEN_FILE if with_token else "")

    def open_to_anyone(self) -> bool:
        """Whether Ray does what a client without a token asks for."""
        return self.ask("/api/version", with_token=False).status == 200


def parse_nodes(body: str) -> list[RayNode]:
    """The living nodes in an answer of /api/v0/nodes; empty when it is none."""
    try:
        rows = json.loads(body)["data"]["result"]["result"]
        return [
            RayNode(
                str(row["node_ip"]),
                bool(row["is_head_node"]),
                float((row.get("resources_total") or {}).get("GPU", 0.0)),
            )
            for row in rows
            if row["state"] == "ALIVE"
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def token(session: Session) -> str:
    """The token of the head's Ray, or a new one when there is no Ray yet.

    It is made of 32 random bytes and lives as long as the cluster: `down` removes it.
    """
    found = session.request("gather", files={"token": TOKEN_FILE})["files"]["token"]
    return str(found).strip() if found else secrets.token_hex(32)
