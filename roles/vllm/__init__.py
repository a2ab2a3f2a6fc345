"""The vLLM server: a container of its own on the head, so that it has its own log and restarts.

With the executor `mp` every other node has a rank without a server in such a container.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed
from spark_cluster.ports import EnginePorts
from spark_cluster.resources import Container
from spark_cluster.serving.engine import (
    LOOPBACK,
    RAY_HOME,
    SERVER,
    EngineSettings,
    container,
    ray_authentication,
)

PORTS = EnginePorts()


class Settings(EngineSettings):
    """Settings of the role `vllm`; `up` gives them from the recipe and the inventory."""

    args: tuple[str, ...] = Field(description="arguments of `vllm serve MODEL`, all ranks' alike")
    port: int = Field(default=8000, description="vLLM's port on the head's loopback")
    ray_port: int = Field(default=PORTS.gcs, description="of Ray's head")
    master_port: int = Field(
        default=PORTS.master, description="where ranks of the executor mp meet"
    )
    ranks: tuple[str, ...] = Field(
        default=(), description="names of the nodes that serve by the executor mp, the head first"
    )
    stop_timeout_s: int = Field(default=30, description="seconds to end in before it is killed")


def role(node: Spark, settings: Settings) -> Iterator[Container]:
    """The server on the head; elsewhere another rank of the executor mp, or nothing."""
    command = ("vllm", "serve", settings.model_path, *settings.args)
    if settings.tp > 1 and settings.executor == "mp" and node.name in settings.ranks:
        yield _rank(node, settings, command)
    elif node.is_head:
        yield _server(node, settings, command)
    else:
        yield Container(SERVER, state="absent")


def _server(node: Spark, settings: Settings, command: tuple[str, ...]) -> Container:
    """The server.

    Beside a Ray head it needs four things (found out one by one): the host's PID namespace, or Ray
    does not find its node; Ray's folder; vLLM's own sockets in a folder that both share, or it
    hangs for ever; and the head's address.
    """
    if settings.tp == 1:
        return _answering(node, settings, command)
    variables, secrets = ray_authentication(settings)
    return _answering(
        node,
        settings,
        (*command, "--distributed-executor-backend=ray"),
        mounts=(f"{RAY_HOME}:/tmp/ray",),
        env={
            "RAY_ADDRESS": f"{node.fabric_ip}:{settings.ray_port}",
            "VLLM_RPC_BASE_PATH": "/tmp/ray",  # noqa: S108  (in the container)
            **variables,
        },
        secret_files=secrets,
        pid="host",
    )


def _rank(node: Spark, settings: Settings, command: tuple[str, ...]) -> Container:
    """A rank of vLLM's own multi-node mode; the head's is the server, the others have none."""
    master = node.head.fabric_ip
    if master is None:
        raise Failed("there is no fabric to serve over", where=node.name)
    rank = settings.ranks.index(node.name)
    command += (
        "--distributed-executor-backend=mp",
        f"--nnodes={settings.tp}",
        f"--node-rank={rank}",
        f"--master-addr={master}",
        f"--master-port={settings.master_port}",
    )
    if rank == 0:
        return _answering(node, settings, command)
    return container(
        node, SERVER, (*command, "--headless"), settings, stop_timeout_s=settings.stop_timeout_s
    )


def _answering(
    node: Spark, settings: Settings, command: tuple[str, ...], **options: Any
) -> Container:
    """The container that answers requests, on the loopback: a key is the proxy's to ask for.

    What vLLM itself would guard by a key is a part of its paths, and it would hand the key on to
    all of Ray's workers in their environment.
    """
    command += (f"--host={LOOPBACK}", f"--port={settings.port}")
    return container(
        node, SERVER, command, settings, stop_timeout_s=settings.stop_timeout_s, **options
    )
