"""The interface of inference engines: an engine is one module with such an object, and its programs
run for long on one node, wherever they run.

Ours are `vllm.py` and `sglang.py`; another package adds its own by an entry point of the group
`spark_cluster.engines` (`spark_cluster.config.engines`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from spark_cluster.config import engines
from spark_cluster.config.engines import Dialect
from spark_cluster.config.folders import CACHES
from spark_cluster.config.ports import Span
from spark_cluster.config.recipe_schema import ReadinessCheck
from spark_cluster.errors import Failed
from spark_cluster.node.containers import ENGINE, ContainerState
from spark_cluster.node.health import Completion, State, judge
from spark_cluster.node.values import Secret

if TYPE_CHECKING:
    from spark_cluster.config.topology import Node
    from spark_cluster.engine.deployment import Server


SECRET_ENV = "/run/secrets/env"  # noqa: S105  (a folder)
"""Folder that the program sees, with a file for each secret variable: Docker and systemd show an
environment that is declared to everyone who may ask them."""

WITH_SECRET_ENV = (
    f'for file in {SECRET_ENV}/*; do export "${{file##*/}}=$(cat "$file")" || exit; done; '
    'exec "$0" "$@"'
)


OF_INTERFACE = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"),
    *("OMPI_MCA_btl_tcp_if_include", "MN_IF_NAME"),
)
"""Variables by which NCCL, Gloo, vLLM, UCX and Open MPI take the link's interface."""


@dataclass(frozen=True)
class EngineProcess:
    """A program of an engine; paths are the same on the node and for the program.

    Attributes:
        name: `SERVER` (of one of several models, one that begins with it) or `RAY`.
        command: the program, as its environment finds it, and its arguments.
        env: its variables.
        secret_files: path that the program sees to a secret.
        mounts: `SOURCE:TARGET[:ro]`, in addition to those of the deployment.
        rdma: whether it needs the RDMA devices.
        sees_ray: whether it shares the process ids of Ray's head: it is that, or a server over it.
        stop_timeout_s: seconds that it has to end before it is killed.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_files: Mapping[str, Secret] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    rdma: bool = False
    sees_ray: bool = False
    stop_timeout_s: int = 30


def base_environment(node: Node, server: Server) -> dict[str, str]:
    """Return caches, and over the link its address, interface and HCAs, which differ by node.

    The GID index is left to NCCL: a pinned one drifts, and an empty one means the link-local
    entry.

    Raises:
        Failed: several nodes serve and this one has no link.
    """
    env = {name: f"{server.cache_root}/{folder}" for name, folder in CACHES.items()}
    if server.size == 1:
        return env
    if not node.links:
        raise Failed("there is no fabric to serve over", where=node.name)
    interface = node.links[0].interface
    env |= dict.fromkeys(OF_INTERFACE, interface)
    env |= {"NCCL_IB_DISABLE": "0", "NCCL_IGNORE_CPU_AFFINITY": "1"}
    hcas = [link.hca for link in node.links if link.hca]
    if hcas:
        env["NCCL_IB_HCA"] = ",".join(hcas)
        env["NCCL_IB_MERGE_NICS"] = "1" if len(hcas) > 1 else "0"
    return env


def needs_rdma(node: Node, server: Server) -> bool:
    """Return True where several nodes serve and this one has RDMA devices."""
    return server.size > 1 and bool(node.facts.hcas)


class Engine(Protocol):
    """An inference engine with an OpenAI-compatible server.

    Attributes:
        dialect: how it writes its flags; whether plans are made for it.
        health: path that answers 200 while it serves.
        died: status of that path when the engine has died and its API still answers, which is
            different from that while it loads; None where there is no such status.
        loading: status of that path while it loads; None where nothing listens then.
        version: path of a JSON document, and the key of the version in it.
        rungs: readiness checks that it can pass.
    """

    dialect: Dialect
    health: str
    died: int | None
    loading: int | None
    version: tuple[str, str]
    rungs: frozenset[ReadinessCheck]

    def environment(self, node: Node, deployment: Server) -> dict[str, str]:
        """Return the variables of its programs on a node: interfaces, HCAs, addresses, caches.

        Raises:
            Failed: the node has no link to serve over.
        """
        ...

    def server(self, node: Node, deployment: Server, master_port: int) -> EngineProcess | None:
        """Return the server on the head, a rank elsewhere, or None where it runs nothing.

        Args:
            master_port: rendezvous of the ranks that the engine joins without Ray.
        """
        ...

    def ports(self, master_port: int) -> tuple[Span, ...]:
        """Return the ports that it opens to other nodes, other than those of Ray and its flags."""
        ...


def engine(name: str) -> Engine:
    """Return an engine by its name.

    Raises:
        UsageError: there is no such engine, with the nearest name.
    """
    return cast("Engine", engines.load(name))


def engine_of(container: ContainerState) -> Engine:
    """Return the engine that a program was started with; vLLM where its label names none."""
    name = container.label(ENGINE, engines.DEFAULT)
    return engine(name if name in engines.names() else engines.DEFAULT)


def judge_health(
    serving: Engine,
    health: int,
    container: ContainerState | None = None,
    completion: Completion | None = None,
) -> State:
    """Return whether a server of an engine lives, by the status of its /health; see `judge`."""
    return judge(container, health, completion, died=serving.died, loading=serving.loading)
