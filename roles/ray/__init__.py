"""Ray over the fabric: the head's container and a worker's; none when nothing needs Ray."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed
from spark_cluster.ports import EnginePorts
from spark_cluster.resources import Container, Directory, Resource
from spark_cluster.serving.engine import (
    RAY,
    RAY_HOME,
    EngineSettings,
    container,
    ray_authentication,
)

PORTS = EnginePorts()


class Settings(EngineSettings):
    """Settings of the role `ray`; `up` gives the engine's from the recipe."""

    port: int = Field(default=PORTS.gcs, description="of the head's control service, on the fabric")
    dashboard_port: int = Field(default=PORTS.dashboard, description="on the head's loopback")
    first_port: int = Field(
        default=PORTS.first_port, description="first of nine for Ray's services on each node"
    )
    min_worker_port: int = Field(default=PORTS.min_worker_port, description="first port of workers")
    max_worker_port: int = Field(default=PORTS.max_worker_port, description="last port of workers")
    object_store_memory: int | None = Field(default=None, description="bytes; None: Ray's own")
    num_cpus: int | None = Field(default=None, description="None: Ray's own count")

    @property
    def ports(self) -> EnginePorts:
        """All of them."""
        return EnginePorts(
            self.port,
            self.dashboard_port,
            self.first_port,
            self.min_worker_port,
            self.max_worker_port,
        )


def role(node: Spark, settings: Settings) -> Iterator[Resource]:
    """The head or a worker, kept alive by Docker's restart policy."""
    if settings.tp == 1 or settings.executor != "ray":
        yield Container(RAY, state="absent")
        return
    address, head = node.fabric_ip, node.head.fabric_ip
    if address is None or head is None:
        raise Failed("there is no fabric for Ray", where=node.name)
    ports = settings.ports
    start = ["ray", "start", "--block", "--disable-usage-stats", f"--node-ip-address={address}"]
    start += ["--num-gpus=1", *_ports(ports)]
    if settings.object_store_memory is not None:
        start.append(f"--object-store-memory={settings.object_store_memory}")
    if settings.num_cpus is not None:
        start.append(f"--num-cpus={settings.num_cpus}")
    if node.is_head:
        start += ["--head", f"--port={ports.gcs}", "--dashboard-host=127.0.0.1"]
        start += [f"--dashboard-port={ports.dashboard}"]
        start += [f"--ray-client-server-port={ports.client_server}"]
        yield Directory(RAY_HOME)  # Ray sets the mode itself
    else:
        start.append(f"--address={head}:{ports.gcs}")
    mounts = (f"{RAY_HOME}:/tmp/ray",) if node.is_head else ()
    variables, secrets = ray_authentication(settings)
    # `ray start --block` does not end on SIGTERM, and nothing of it is worth waiting for.
    yield container(
        node,
        RAY,
        tuple(start),
        settings,
        mounts=mounts,
        env={**ports.metrics_environment(), **variables},
        secret_files=secrets,
        stop_timeout_s=2,
    )


def _ports(ports: EnginePorts) -> list[str]:
    """Options that leave no port of a node's Ray to chance."""
    return [
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--dashboard-agent-listen-port={ports.agent_http}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--metrics-export-port={ports.metrics}",
        f"--min-worker-port={ports.min_worker_port}",
        f"--max-worker-port={ports.max_worker_port}",
    ]
