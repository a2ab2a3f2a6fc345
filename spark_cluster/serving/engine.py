"""How every container of the engine is run, on any node: arguments, environment, mounts.

Engine arguments are rendered once and are the same on all ranks (otherwise graph capture
deadlocks); the environment is computed node by node, because interface and HCA names differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr

from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed
from spark_cluster.resources import Container, Secret

CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_HOME": "huggingface",
}
"""Variable to folder; the compile cache's key hashes the launch flags."""

CACHE_ROOT = "/var/cache/spark-cluster/engine"
"""Folder of the caches on a node, unless the setting `root` of the role `caches` names another."""

RAY_HOME = "/var/lib/spark-cluster/ray"
"""Ray's sessions on the head; a persistent folder, or the containers would not come back after a
reboot (a bind mount's source must exist)."""

SECRET_ENV = "/run/secrets/env"  # noqa: S105  (a folder)
"""Folder in the containers with a file for each secret variable: Docker shows what is in `--env`
to everyone who may ask it."""

WITH_SECRET_ENV = (
    f'for file in {SECRET_ENV}/*; do export "${{file##*/}}=$(cat "$file")" || exit; done; '
    'exec "$0" "$@"'
)

SERVER, RAY = "spark-vllm", "spark-ray"
"""Names of the containers."""

RAY_TOKEN = "/run/secrets/ray-token"  # noqa: S105  (a path)
"""Ray's token as the containers see it."""

LOOPBACK = "127.0.0.1"
"""Where vLLM listens, with and without a proxy in front of it."""


class EngineSettings(BaseModel):
    """What the roles `ray` and `vllm` share; `up` gives it from the recipe."""

    image: str = Field(description="reference of the image")
    model_path: str = Field(description="folder of the model, on the node and in the container")
    tp: int = Field(ge=1, description="tensor-parallel size: nodes that serve")
    executor: Literal["ray", "mp"] = Field(default="ray", description="what joins the nodes")
    mounts: tuple[str, ...] = Field(default=(), description="SOURCE:TARGET[:ro]")
    env: dict[str, str] = Field(default={}, description="environment of the recipe")
    secret_env: dict[str, SecretStr] = Field(
        default={}, description="variables of the recipe that are secrets"
    )
    cache_root: str = Field(
        default=CACHE_ROOT, description="`up` gives what the role caches has as `root`"
    )
    labels: dict[str, str] = Field(default={}, description="labels of the containers")
    ray_token: SecretStr | None = Field(
        default=None, description="what every request to Ray must carry; None: Ray asks for none"
    )


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


def ray_authentication(settings: EngineSettings) -> tuple[dict[str, str], dict[str, Secret]]:
    """Environment and secret files with which a container takes part in an authenticated Ray.

    Ray knows tokens since 2.52; an older one ignores the variables. The token itself is in no
    variable: the environment is in `docker inspect` and reaches every worker.
    """
    if settings.ray_token is None:
        return {}, {}
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": RAY_TOKEN}
    return variables, {RAY_TOKEN: Secret(settings.ray_token.get_secret_value())}


def container(
    node: Spark,
    name: str,
    command: tuple[str, ...],
    settings: EngineSettings,
    *,
    mounts: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    secret_files: Mapping[str, Secret] | None = None,
    **more: Any,
) -> Container:
    """A container of the engine, with what RDMA needs (a default memlock of 8 MB breaks it).

    The image's own entry point is left out: that of vllm/vllm-openai is `vllm serve`, others have
    none, and the command is to be the same.
    """
    caches = f"{settings.cache_root}:{settings.cache_root}"
    model = f"{settings.model_path}:{settings.model_path}:ro"
    secrets = {
        f"{SECRET_ENV}/{variable}": Secret(value.get_secret_value())
        for variable, value in settings.secret_env.items()
    }
    if secrets:
        command = ("sh", "-c", WITH_SECRET_ENV, *command)
    return Container(
        name,
        settings.image,
        command,
        entrypoint="",
        env={**environment(node, settings), **(env or {})},
        secret_files={**secrets, **(secret_files or {})},
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
