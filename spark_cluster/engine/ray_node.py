"""A node of Ray: how it is started, on every node of a deployment that Ray joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.engine.names import RAY
from spark_cluster.engine.process import Process, needs_rdma
from spark_cluster.errors import Failed
from spark_cluster.node import paths
from spark_cluster.node.values import Secret

if TYPE_CHECKING:
    from spark_cluster.config.ports import EnginePorts
    from spark_cluster.engine.deployment import Server
    from spark_cluster.engine.engine import Engine
    from spark_cluster.topology import Node

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
