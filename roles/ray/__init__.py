"""Ray over the fabric: the head's container and a worker's; none when nothing needs Ray."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed
from spark_cluster.resources import Container, Directory, Resource
from spark_cluster.serving.engine import RAY, RAY_HOME, EngineSettings, container


class Settings(EngineSettings):
    """Settings of the role `ray`; `up` gives the engine's from the recipe."""

    port: int = Field(default=6379, description="of the head's control service, on the fabric")
    dashboard_port: int = Field(default=8265, description="on the head's loopback")
    min_worker_port: int = Field(default=18400, description="first port of workers")
    max_worker_port: int = Field(default=18899, description="last port of workers")
    object_store_memory: int | None = Field(default=None, description="bytes; None: Ray's own")
    num_cpus: int | None = Field(default=None, description="None: Ray's own count")


def role(node: Spark, settings: Settings) -> Iterator[Resource]:
    """The head or a worker, kept alive by Docker's restart policy."""
    if settings.tp == 1 or settings.executor != "ray":
        yield Container(RAY, state="absent")
        return
    address, head = node.fabric_ip, node.head.fabric_ip
    if address is None or head is None:
        raise Failed("there is no fabric for Ray", where=node.name)
    start = ["ray", "start", "--block", "--disable-usage-stats", f"--node-ip-address={address}"]
    start += ["--num-gpus=1", f"--min-worker-port={settings.min_worker_port}"]
    start += [f"--max-worker-port={settings.max_worker_port}"]
    if settings.object_store_memory is not None:
        start.append(f"--object-store-memory={settings.object_store_memory}")
    if settings.num_cpus is not None:
        start.append(f"--num-cpus={settings.num_cpus}")
    if node.is_head:
        start += ["--head", f"--port={settings.port}", "--dashboard-host=127.0.0.1"]
        start += [f"--dashboard-port={settings.dashboard_port}"]
        yield Directory(RAY_HOME)  # Ray sets the mode itself
    else:
        start.append(f"--address={head}:{settings.port}")
    mounts = (f"{RAY_HOME}:/tmp/ray",) if node.is_head else ()
    # `ray start --block` does not end on SIGTERM, and nothing of it is worth waiting for.
    yield container(node, RAY, tuple(start), settings, mounts=mounts, stop_timeout_s=2)
