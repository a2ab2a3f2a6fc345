"""Ray: how a node of it is started, and its State API over HTTP, asked by the head.

It is one turn, over the head's loopback and without a tunnel.

The API is what `ray list nodes` asks (docs.ray.io, "Monitoring with the CLI or SDK"). The
dashboard is a port of the head's loopback only: Ray runs what anyone who reaches it asks for.
`ray_cluster.py` has jobs run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.schema import Document
from spark_cluster.engine.engine import Engine, EngineProcess, needs_rdma
from spark_cluster.engine.names import RAY
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import paths
from spark_cluster.node.containers import DASHBOARD, RAY_NODES, ContainerState
from spark_cluster.node.replies import at, decoded, short, text_of
from spark_cluster.node.values import Secret
from spark_cluster.resources.unit import secret_path

if TYPE_CHECKING:
    from spark_cluster.config.topology import Node
    from spark_cluster.engine.deployment import Server
    from spark_cluster.runner.session import Answer, Session

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""States of a job that has ended; before that it is PENDING or RUNNING."""

LARGEST_FOLDER = 500 << 20
"""Bytes of a working folder that Ray takes (source: ray-docs-runtime-env)."""

LEFT_OUT = (".git", ".venv", "venv", "__pycache__")
"""Folders that Ray does not send (source: ray-docs-runtime-env)."""

IGNORING = {".gitignore", ".rayignore"}
"""Files that name more of what Ray does not send."""


SILENT = "Ray does not answer"
SILENT_HINT = (
    "spark-cluster ray status, spark-cluster logs; without its extra Ray has no dashboard: "
    'pip install "ray[default]" in the image or the environment'
)


@dataclass(frozen=True)
class Job(Document):
    """A job that was submitted.

    Attributes:
        id: its submission id.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        entrypoint: the shell command.
        message: what Ray says of its state.
        exit_code: of the command; None while it runs, and where Ray does not tell it.
        started, ended: Unix time in seconds; None where it has not.
    """

    id: str
    status: str
    entrypoint: str = ""
    message: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def has_ended(self) -> bool:
        """True if it does not run any more, and never will."""
        return self.status in ENDED

    @property
    def exit_status(self) -> int:
        """Exit status of a command that waited for it: the job's own, 128 and the signal that
        ended it, or 1 for one that failed without a status."""
        if self.status == "SUCCEEDED":
            return 0
        code = self.exit_code or 1
        return 128 - code if -64 <= code < 0 else code & 0xFF or 1

    @property
    def why(self) -> str:
        """Why it ended as it did, in a line."""
        return short(" ".join(self.message.partition(", last available logs")[0].split()))


def must_be_an_id(name: str) -> None:
    """Look whether a text can be the id of a job.

    Raises:
        UsageError: it cannot.
    """
    if not re.fullmatch(r"[\w.-]{1,200}", name):
        raise UsageError(f"{name!r} is not the id of a job", hint="spark-cluster ray list")


def must_be_sendable(folder: Path) -> None:
    """Look whether a working folder is small enough for Ray, as far as is certain without packing.

    Folders with a .gitignore are left to Ray's client, which looks when it has packed them.

    Raises:
        UsageError: it is too large.
    """
    size = 0
    for place, folders, names in os.walk(folder):
        if not IGNORING.isdisjoint(names):
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            with contextlib.suppress(OSError):  # it was removed meanwhile
                size += (Path(place) / name).stat().st_size
        if size > LARGEST_FOLDER:
            raise UsageError(
                f"{folder} holds more than {LARGEST_FOLDER >> 20} MiB, the most that Ray takes",
                hint="list what the job does not need in a .gitignore there, and put large data on "
                "the nodes",
            )


def job_of(row: Any) -> Job | None:
    """Read a job of Ray's answer, which is foreign input.

    Returns:
        None for what was not submitted as a job, such as a server that runs on this Ray.
    """
    name, status = text_of(at(row, "submission_id")), text_of(at(row, "status"))
    if not name or not status:
        return None
    code = at(row, "driver_exit_code")
    return Job(
        name,
        status,
        text_of(at(row, "entrypoint")),
        text_of(at(row, "message")),
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        _seconds(at(row, "start_time")),
        _seconds(at(row, "end_time")),
    )


def newest_first(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs by the time of their start, the newest first."""
    return sorted(jobs, key=lambda job: -(job.started or 0))


def _seconds(value: Any) -> float | None:
    """Seconds of what Ray gives in milliseconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value / 1000 if is_number and 0 < value < 1e14 else None


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


def ray_node(node: Node, server: Server, engine: Engine) -> EngineProcess:
    """Return Ray's head or a worker, with the engine's environment, which its actors inherit.

    Raises:
        Failed: there is no link.
    """
    address, head = node.fabric_ip, node.head.fabric_ip
    if address is None or head is None:
        raise Failed("there is no fabric for Ray", where=node.name)
    ray, ports = server.recipe.ray, server.recipe.ray.ports
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
    return EngineProcess(
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
        with contextlib.suppress(ValueError):
            return parse_nodes(self._body(NODES))
        return []

    def jobs(self) -> list[Job]:
        """The jobs that were submitted, the newest first; empty when Ray does not answer."""
        rows = decoded(self._body(JOBS))
        found = [job_of(row) for row in rows] if isinstance(rows, list) else []
        return newest_first(job for job in found if job is not None)

    def version(self) -> str:
        """Ray's version; empty when it does not answer."""
        return text_of(at(decoded(self._body(VERSION)), "ray_version"))

    def _body(self, path: str) -> str:
        """Return the body of the dashboard's answer; empty for a refusal or none."""
        answer = self.ask(path)
        return answer.body if answer.status == 200 else ""

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
