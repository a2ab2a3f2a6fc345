"""Ray's State API over HTTP, asked by the head over its loopback: one turn, without a tunnel.

The API is what `ray list nodes` asks (docs.ray.io, "Monitoring with the CLI or SDK"). The
dashboard is a port of the head's loopback only: Ray runs what anyone who reaches it asks for.
`job_client.py` has jobs run.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

from spark_cluster.config.ports import EnginePorts
from spark_cluster.engine.job import Job, job_of, newest_first
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray_node import RAY_TOKEN
from spark_cluster.node.containers import DASHBOARD, ContainerState
from spark_cluster.node.replies import at, decoded, short, text_of
from spark_cluster.node.supervision.look import RAY_NODES
from spark_cluster.resources.secret_files import secret_path
from spark_cluster.runner.session import Answer

TOKEN_FILE = secret_path(RAY, RAY_TOKEN)
"""Ray's token on a node: what its container was started with."""

TOKENS_SINCE = "2.52"
"""First Ray that can ask for a token (docs.ray.io, "Ray token authentication")."""


NODES, VERSION, JOBS = RAY_NODES, "/api/version", "/api/jobs/"
"""Paths of the State API, of the dashboard's version and of the Jobs API."""

TIMEOUT_S = 5.0
"""Seconds for an answer."""


class Asker(Protocol):
    """A client that makes requests: a node's session."""

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
        answer = self.ask(NODES)
        with contextlib.suppress(ValueError):
            return parse_nodes(answer.body) if answer.status == 200 else []
        return []

    def jobs(self) -> list[Job]:
        """The jobs that were submitted, the newest first; empty when Ray does not answer."""
        answer = self.ask(JOBS)
        rows = decoded(answer.body) if answer.status == 200 else None
        found = [job_of(row) for row in rows] if isinstance(rows, list) else []
        return newest_first(job for job in found if job is not None)

    def version(self) -> str:
        """Ray's version; empty when it does not answer."""
        answer = self.ask(VERSION)
        known = at(decoded(answer.body), "ray_version") if answer.status == 200 else None
        return text_of(known)

    def ask(self, path: str, *, with_token: bool = True) -> Answer:
        """The dashboard's answer, as a client that has Ray's token, or as one that has none."""
        token = TOKEN_FILE if with_token else ""
        return self.session.http(_url(self.port, path), timeout=TIMEOUT_S, bearer_file=token)

    def open_to_anyone(self) -> bool:
        """Return whether Ray executes the requests of a client without a token."""
        return self.ask(VERSION, with_token=False).status == 200


def dashboard_port(container: ContainerState) -> int:
    """Return the port of the dashboard on the head's loopback, by the labels of Ray or a server."""
    return container.number(DASHBOARD, EnginePorts().dashboard)


def question(port: int) -> dict[str, Any]:
    """Return the request for Ray's nodes, for those who gather it together with other things."""
    return {"url": _url(port, NODES), "timeout": TIMEOUT_S, "bearer_file": TOKEN_FILE}


def parse_nodes(body: str) -> list[RayNode]:
    """Read the nodes that are alive in an answer of `NODES`.

    Raises:
        ValueError: it is no such answer.
    """
    rows = at(decoded(body), "data", "result", "result")
    if not isinstance(rows, list) or not all(text_of(at(row, "state")) for row in rows):
        raise ValueError(f"Ray's State API says: {short(body)}")
    return [
        RayNode(
            text_of(at(row, "node_ip")),
            at(row, "is_head_node") is True,
            _number(at(row, "resources_total", "GPU")),
        )
        for row in rows
        if row["state"] == "ALIVE"
    ]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"
