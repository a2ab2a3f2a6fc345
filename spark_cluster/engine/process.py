"""A long-running program of an engine on one node, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_cluster.config.caches import CACHES
from spark_cluster.errors import Failed
from spark_cluster.node.values import Secret

if TYPE_CHECKING:
    from spark_cluster.engine.deployment import Server
    from spark_cluster.topology import Node

SECRET_ENV = "/run/secrets/env"  # noqa: S105  (a folder)
"""Folder that the program sees, with a file for each secret variable: Docker and systemd show an
environment that is declared to everyone who may ask them."""

WITH_SECRET_ENV = (
    f'for file in {SECRET_ENV}/*; do export "${{file##*/}}=$(cat "$file")" || exit; done; '
    'exec "$0" "$@"'
)


@dataclass(frozen=True)
class Process:
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
    env |= {
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "UCX_NET_DEVICES": interface,
        "OMPI_MCA_btl_tcp_if_include": interface,
        "MN_IF_NAME": interface,
        "NCCL_IB_DISABLE": "0",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    hcas = [link.hca for link in node.links if link.hca]
    if hcas:
        env["NCCL_IB_HCA"] = ",".join(hcas)
        env["NCCL_IB_MERGE_NICS"] = "1" if len(hcas) > 1 else "0"
    return env


def needs_rdma(node: Node, server: Server) -> bool:
    """Return True where several nodes serve and this one has RDMA devices."""
    return server.size > 1 and bool(node.facts.hcas)
