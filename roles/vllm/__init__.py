"""The vLLM server: a container of its own on the head, so that it has its own log and restarts."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, SecretStr

from spark_cluster.cluster import Spark
from spark_cluster.resources import Container, Secret
from spark_cluster.serving.engine import RAY_HOME, SERVER, EngineSettings, container

KEY_FILE = "/run/secrets/api-key"
WITH_KEY = f'VLLM_API_KEY="$(cat {KEY_FILE})" && export VLLM_API_KEY && exec "$0" "$@"'


class Settings(EngineSettings):
    """Settings of the role `vllm`; `up` gives them from the recipe and the inventory."""

    args: tuple[str, ...] = Field(description="arguments of `vllm serve MODEL`, all ranks' alike")
    host: str = Field(default="127.0.0.1", description="address the endpoint binds to")
    port: int = Field(default=8000, description="port of the endpoint")
    ray_port: int = Field(default=6379, description="of Ray's head")
    api_key: SecretStr | None = Field(default=None, description="key that requests must carry")
    stop_timeout_s: int = Field(default=30, description="seconds to end in before it is killed")


def role(node: Spark, settings: Settings) -> Iterator[Container]:
    """The server on the head; none elsewhere.

    Beside a Ray head it needs four things (found out one by one): the host's PID namespace, or Ray
    does not find its node; Ray's folder; vLLM's own sockets in a folder that both share, or it
    hangs for ever; and the head's address.
    """
    if not node.is_head:
        yield Container(SERVER, state="absent")
        return
    command = ("vllm", "serve", settings.model_path, *settings.args)
    command += (f"--host={settings.host}", f"--port={settings.port}")
    secrets: dict[str, Secret] = {}
    if settings.api_key is not None:
        secrets[KEY_FILE] = Secret(settings.api_key.get_secret_value())
        command = ("sh", "-c", WITH_KEY, *command)
    mounts: tuple[str, ...] = ()
    env: dict[str, str] = {}
    if settings.tp > 1:
        command += ("--distributed-executor-backend=ray",)
        mounts = (f"{RAY_HOME}:/tmp/ray",)
        env = {
            "RAY_ADDRESS": f"{node.fabric_ip}:{settings.ray_port}",
            "VLLM_RPC_BASE_PATH": "/tmp/ray",  # noqa: S108  (in the container)
        }
    yield container(
        node,
        SERVER,
        command,
        settings,
        mounts=mounts,
        env=env,
        secret_files=secrets,
        pid="host" if settings.tp > 1 else None,
        stop_timeout_s=settings.stop_timeout_s,
    )
