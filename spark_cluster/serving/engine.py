"""How every container of the engine is run, on any node: arguments, environment, mounts.

Engine arguments are rendered once and are the same on all ranks (otherwise graph capture
deadlocks); the environment is computed node by node, because interface and HCA names differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed
from spark_cluster.resources import Container

CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_HOME": "huggingface",
}
"""Variable to folder; the compile cache's key hashes the launch flags."""

RAY_HOME = "/var/lib/spark-cluster/ray"
"""Ray's sessions on the head; a persistent folder, or the containers would not come back after a
reboot (a bind mount's source must exist)."""

SERVER, RAY = "spark-vllm", "spark-ray"
"""Names of the containers."""


class EngineSettings(BaseModel):
    """What the roles `ray` and `vllm` share; `up` gives it from the recipe."""

    image: str = Field(description="reference of the image")
    model_path: str = Field(description="folder of the model, on the node and in the container")
    tp: int = Field(ge=1, description="tensor-parallel size: nodes that serve")
    executor: Literal["ray", "mp"] = Field(default="ray", description="what joins the nodes")
    mounts: tuple[str, ...] = Field(default=(), description="SOURCE:TARGET[:ro]")
    env: dict[str, str] = Field(default={}, description="environment of the recipe")
    cache_root: str = Field(
        default="/var/cache/spark-cluster/engine", description="as the role caches makes it"
    )
    labels: dict[str, str] = Field(default={}, description="labels of the containers")


def environment(node: Spark, settings: EngineSettings) -> dict[str, str]:
    """The environment of an engine container on one node.

    Over the fabric each node names its own address, interface and HCAs. The GID index is left to
    NCCL: a pinned one drifts, and an empty one means the link-local entry.
    """
    env = {name: f"{settings.cache_root}/{folder}" for name, folder in CACHES.items()}
    if settings.tp > 1:
        if not node.links:
            raise Failed("there is no fabric to serve over", where=node.name)
        interface = node.links[0].interface
        address = str(node.links[0].address.ip)
        env |= {
            "VLLM_HOST_IP": address,
            "RAY_NODE_IP_ADDRESS": address,
            "NCCL_SOCKET_IFNAME": interface,
            "GLOO_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
            "UCX_NET_DEVICES": interface,
            "OMPI_MCA_btl_tcp_if_include": interface,
            "MN_IF_NAME": interface,
            "NCCL_IB_DISABLE": "0",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
            "RAY_memory_monitor_refresh_ms": "0",
        }
        hcas = [link.hca for link in node.links if link.hca]
        if hcas:
            env["NCCL_IB_HCA"] = ",".join(hcas)
            env["NCCL_IB_MERGE_NICS"] = "1" if len(hcas) > 1 else "0"
    return env | settings.env


def container(
    node: Spark,
    name: str,
    command: tuple[str, ...],
    settings: EngineSettings,
    *,
    mounts: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> Container:
    """A container of the engine, with what RDMA needs (a default memlock of 8 MB breaks it).

    The image's own entry point is left out: that of vllm/vllm-openai is `vllm serve`, others have
    none, and the command is to be the same.
    """
    caches = f"{settings.cache_root}:{settings.cache_root}"
    model = f"{settings.model_path}:{settings.model_path}:ro"
    return Container(
        name,
        settings.image,
        command,
        entrypoint="",
        env={**environment(node, settings), **(env or {})},
        mounts=(model, caches, *settings.mounts, *mounts),
        network="host",
        ipc="host",
        gpus="all",
        devices=("/dev/infiniband",) if settings.tp > 1 and node.facts.hcas else (),
        cap_add=("IPC_LOCK",),
        ulimits={"memlock": -1, "stack": 67108864},
        labels=settings.labels,
        **more,
    )
