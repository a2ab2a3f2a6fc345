"""Ray's State API over HTTP, asked by the head over its loopback: one turn, without a tunnel.

The API is what `ray list nodes` asks (docs.ray.io, "Monitoring with the CLI or SDK"). The
dashboard is a port of the head's loopback only: Ray runs what anyone who reaches it asks for.
`job_client.py` has jobs run.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.config.ports import EnginePorts
from spark_cluster.engine.engine import Process, needs_rdma
from spark_cluster.engine.job import Job, job_of, newest_first
from spark_cluster.engine.names import RAY
from spark_cluster.errors import Failed
from spark_cluster.node import paths
from spark_cluster.node.containers import DASHBOARD, ContainerState
from spark_cluster.node.replies import at, decoded, short, text_of
from spark_cluster.node.supervision.look import RAY_NODES
from spark_cluster.node.values import Secret
from spark_cluster.resources.secret_files import secret_path
from spark_cluster.runner.session import Answer, Session

if TYPE_CHECKING:
    from spark_cluster.engine.deployment import Server
    from spark_cluster.engine.engine import Engine
    from spark_cluster.topology import Node


OF_HEAD = "ray-client-server-port"
"""Of the services of Ray the one that a worker does not have."""

RAY_HOME = paths.RAY
"""Ray's sessions on the head; a persistent folder, or the containers would not come back after a
reboot (a bind mount's source must exist)."""

ALONE = {"spark-cluster.alone": "ray up"}
"""Label of a Ray that was started without a model, on purpose."""

MEASURING = "spark-cluster.fabric"
"""Label of a Ray that was started for `bench fabric`: the run."""

RAY_TOKEN = "/run/secrets/ray-token"  # noqa: S105  (a path)
"""Ray's token as its programs see it."""

OF_HEAD = "ray-client-server-port"
"""Of the services of Ray the one that a worker does not have."""


def authentication(server: Server) -> tuple[dict[str, str], dict[str, Secret]]:
    """Return environment and secret files with which a program takes part in an authenticated Ray.

    Ray knows tokens since 2.52; an older one ignores the variables. The token itself is in no
    variable: the environment is in `docker inspect` and reaches every worker.
    """
    if server.ray_token is None:
        return {}, {}
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": RAY_TOKEN}
    return variables, {RAY_TOKEN: Secret(server.ray_token)}


def ray_node(node: Node, server: Server, engine: Engine) -> Process:
    """Return Ray's head or a worker, with the engine's environment, which its actors inherit.

    Raises:
        Failed: there is no link.
    """
    address, head = node.fabric_ip, node.head.fabric_ip
    if address is None or head is None:
        raise Failed("there is no fabric for Ray", where=node.name)
    ray, ports = server.ray, server.ray.ports
    start = ["ray", "start", "--block", "--disable-usage-stats", f"--node-ip-address={address}"]
    start += ["--num-gpus=1", *_ports(ports)]
    if ray.object_store_memory is not None:
        start.append(f"--object-store-memory={ray.object_store_memory}")
    if ray.num_cpus is not None:
        start.append(f"--num-cpus={ray.num_cpus}")
    if node.is_head:
        start += ["--head", f"--port={ports.gcs}", "--dashboard-host=127.0.0.1"]
        start += [f"--dashboard-port={ports.dashboard}"]
        start += [f"--{OF_HEAD}={ports.services[OF_HEAD]}"]
    else:
        start.append(f"--address={head}:{ports.gcs}")
    variables, secrets = authentication(server)
    metrics = {name: str(port) for name, port in ports.services.items() if name.isupper()}
    env = {**engine.environment(node, server), **metrics, **variables}
    # `ray start --block` does not end on SIGTERM, and nothing of it is worth waiting for.
    return Process(
        RAY,
        tuple(start),
        env,
        secret_files=secrets,
        mounts=(f"{RAY_HOME}:/tmp/ray",) if node.is_head else (),
        rdma=needs_rdma(node, server),
        sees_ray=node.is_head,
        stop_timeout_s=2,
    )


def _ports(ports: EnginePorts) -> list[str]:
    """Return the options that leave no port of a node's Ray to chance."""
    services = ports.services.items()
    return [
        *(f"--{name}={port}" for name, port in services if name.islower() and name != OF_HEAD),
        f"--min-worker-port={ports.min_worker_port}",
        f"--max-worker-port={ports.max_worker_port}",
    ]


TOKEN_FILE = secret_path(RAY, RAY_TOKEN)
"""Ray's token on a node: what its container was started with."""

TOKENS_SINCE = "2.52"
"""First Ray that can ask for a token (docs.ray.io, "Ray token authentication")."""


NODES, VERSION, JOBS = RAY_NODES, "/api/version", "/api/jobs/"
"""Paths of the State API, of the dashboard's version and of the Jobs API."""

TIMEOUT_S = 5.0
"""Seconds for an answer."""


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

    session: Session
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
