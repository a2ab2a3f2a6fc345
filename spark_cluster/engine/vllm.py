"""vLLM: one node alone, several over Ray, or several that it joins by itself (executor mp).

Engine arguments are rendered once and are the same on all ranks (otherwise graph capture
deadlocks); the environment is computed node by node, because interface and HCA names differ.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.config.engines import Dialect
from spark_cluster.config.ports import Span
from spark_cluster.config.recipe_schema import CHECKS_OF_KIND, ReadinessCheck
from spark_cluster.engine.engine import Engine, EngineProcess, base_environment, needs_rdma
from spark_cluster.engine.ray import RAY_HOME, authentication
from spark_cluster.errors import Failed

if TYPE_CHECKING:
    from spark_cluster.config.topology import Node
    from spark_cluster.engine.deployment import Server

FLAGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

DIALECT = Dialect("vLLM", ("vllm", "serve"), owned=FLAGS["owned"], planned=True, several_names=True)
"""vLLM's own names are the ones that plans and rules know."""


class VllmEngine:
    """vLLM's server and its ranks."""

    dialect: Dialect = DIALECT
    health = "/health"
    died: int | None = 503
    loading: int | None = None  # nothing listens then (source: make gpu, vLLM 0.26.0)
    version = ("/version", "version")
    rungs: frozenset[ReadinessCheck] = frozenset(
        (*CHECKS_OF_KIND["chat"], "embedding", "reranking", "transcription")
    )

    def environment(self, node: Node, server: Server) -> dict[str, str]:
        """Return caches, the link's address, interface and HCAs, and the recipe's variables."""
        env = base_environment(node, server)
        if server.size > 1:
            address = str(node.links[0].address.ip)
            env |= {
                "VLLM_HOST_IP": address,
                "RAY_NODE_IP_ADDRESS": address,
                "RAY_memory_monitor_refresh_ms": "0",
            }
        return {**env, **server.env}

    def server(self, node: Node, server: Server, master_port: int) -> EngineProcess | None:
        """Return the server on the head; elsewhere another rank of the executor mp, or nothing.

        The server is a program of its own next to Ray, so that it has its own log and restarts.
        """
        command = self.dialect.command(server.model_path, server.args)
        if server.size > 1 and server.recipe.executor == "mp" and node.name in server.node_names:
            return self._rank(node, server, command, master_port)
        if not node.is_head:
            return None
        if server.size == 1:
            return self._process(node, server, _answering(command, server))
        return self._beside_ray(node, server, command)

    def ports(self, master_port: int) -> tuple[Span, ...]:
        """Return the port where ranks of the executor mp meet."""
        return ((master_port, master_port),)

    def _beside_ray(self, node: Node, server: Server, command: tuple[str, ...]) -> EngineProcess:
        """Return the server of several nodes over Ray.

        Next to a Ray head it needs four things (found out one by one): the head's PID namespace, as
        Ray finds its node by the command line of the process raylet (2.60,
        `services.find_node_ids`); Ray's folder; vLLM's own sockets in a folder that both share,
        or it hangs for ever; and the head's address.
        """
        variables, secrets = authentication(server)
        command = (
            *command,
            "--distributed-executor-backend=ray",
            *_ranks_over_ray(node, server),
        )
        made = self._process(node, server, _answering(command, server))
        env = {
            **made.env,
            "RAY_ADDRESS": f"{node.fabric_ip}:{server.recipe.ray.port}",
            "VLLM_RPC_BASE_PATH": "/tmp/ray",  # noqa: S108  (where the program sees it)
            **variables,
        }
        mounts = (f"{RAY_HOME}:/tmp/ray",)
        return replace(made, env=env, mounts=mounts, secret_files=secrets, sees_ray=True)

    def _rank(
        self, node: Node, server: Server, command: tuple[str, ...], master_port: int
    ) -> EngineProcess:
        """Return a rank of vLLM's own multi-node mode; the head's is the server."""
        master = node.head.fabric_ip
        if master is None:
            raise Failed("there is no fabric to serve over", where=node.name)
        rank = server.node_names.index(node.name)
        command += (
            "--distributed-executor-backend=mp",
            f"--nnodes={server.size}",
            f"--node-rank={rank}",
            f"--master-addr={master}",
            f"--master-port={master_port}",
        )
        words = _answering(command, server) if rank == 0 else (*command, "--headless")
        return self._process(node, server, words)

    def _process(self, node: Node, server: Server, command: tuple[str, ...]) -> EngineProcess:
        env = self.environment(node, server)
        return EngineProcess(server.program, command, env, rdma=needs_rdma(node, server))


def _ranks_over_ray(node: Node, server: Server) -> tuple[str, ...]:
    """Return how data-parallel ranks are spread: one actor of Ray on each node, the head's first.

    Without a size of its own, vLLM puts all of them on the head, which has one GPU (0.32,
    `EngineArgs.create_engine_config` and `CoreEngineActorManager.create_dp_placement_groups`).
    """
    if "data-parallel-size" not in server.flags:
        return ()
    return (
        "--data-parallel-backend=ray",
        "--data-parallel-size-local=1",
        f"--data-parallel-address={node.fabric_ip}",
    )


def _answering(command: tuple[str, ...], server: Server) -> tuple[str, ...]:
    """Return the command of what answers requests, behind the proxy, whose concern a key is.

    What vLLM itself would guard by a key is a part of its paths, and it would hand the key on to
    all of Ray's workers in their environment.
    """
    return (*command, f"--host={server.host}", f"--port={server.port}")


VLLM: Engine = VllmEngine()
