"""SGLang, experimentally: one node alone, or several that it joins by itself.

Flags and paths are those of docs.sglang.io ("Server Arguments", "Multi-Node Deployment", "Native
APIs"). There is no Ray in it: every node runs the same command with its own rank, and the first
one answers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.config.engines import Dialect
from spark_cluster.config.ports import Span
from spark_cluster.config.recipe_schema import CHECKS_OF_KIND, ReadinessCheck
from spark_cluster.engine.engine import Engine, EngineProcess, base_environment, needs_rdma
from spark_cluster.errors import Failed

if TYPE_CHECKING:
    from spark_cluster.config.recipe_schema import Drafter, EngineValue
    from spark_cluster.config.topology import Node
    from spark_cluster.engine.deployment import Server

FLAGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

METHODS = {"mtp": "NEXTN", "eagle": "EAGLE", "eagle3": "EAGLE3", "ngram": "NGRAM"}
"""A drafter's method to SGLang's name of it; another method is passed on in capitals."""


@dataclass(frozen=True)
class SglangDialect(Dialect):
    """SGLang's flags: a drafter is several of them, and chunks may be switched off by -1."""

    def drafter(self, drafter: Drafter) -> dict[str, EngineValue]:
        """Return a chain of `tokens` steps; the checked token comes besides."""
        flags: dict[str, EngineValue] = {
            "speculative-algorithm": METHODS.get(drafter.method, drafter.method.upper()),
            "speculative-num-steps": drafter.tokens,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": drafter.tokens + 1,
        }
        if drafter.node_path:
            flags["speculative-draft-model-path"] = drafter.node_path
        return {**flags, **drafter.options}

    def common(self, flags: Mapping[str, EngineValue]) -> dict[str, EngineValue]:
        """Return the flags under vLLM's names; a drafter is one of them."""
        left = dict(flags)
        config = _speculative(left)
        chunk = left.get("chunked-prefill-size")
        if isinstance(chunk, int) and chunk < 1:  # no chunks at all
            del left["chunked-prefill-size"]
        found = super().common(left)
        return {**found, "speculative-config": config} if config else found


def _speculative(flags: dict[str, EngineValue]) -> dict[str, EngineValue]:
    """Take the flags of speculative decoding out; return them as vLLM's configuration."""
    algorithm = str(flags.pop("speculative-algorithm", ""))
    steps = flags.pop("speculative-num-steps", None)
    drafted = flags.pop("speculative-num-draft-tokens", None)
    flags.pop("speculative-eagle-topk", None)
    model = flags.pop("speculative-draft-model-path", None)
    if not algorithm:
        return {}
    methods = {theirs: ours for ours, theirs in METHODS.items()}
    config: dict[str, EngineValue] = {"method": methods.get(algorithm, algorithm.lower())}
    if model is not None:
        config["model"] = model
    if steps is None and isinstance(drafted, int):
        steps = drafted - 1
    if isinstance(steps, int) and steps > 0:
        config["num_speculative_tokens"] = steps
    return config


DIALECT = SglangDialect(
    "SGLang",
    ("python3", "-m", "sglang.launch_server"),
    model=("--model-path", "{}"),
    owned=FLAGS["owned"],
    names=FLAGS["names"],
    executors=("mp",),
)


class SglangEngine:
    """SGLang's server."""

    dialect: Dialect = DIALECT
    health = "/health"
    died: int | None = None  # 503 is its answer while it loads, too
    loading: int | None = 503
    version = ("/get_server_info", "version")
    rungs: frozenset[ReadinessCheck] = frozenset(
        (*CHECKS_OF_KIND["chat"], "embedding", "reranking")
    )

    def environment(self, node: Node, server: Server) -> dict[str, str]:
        """Return caches, the link's interface and HCAs, and the recipe's variables."""
        return {**base_environment(node, server), **server.env}

    def server(self, node: Node, server: Server, master_port: int) -> EngineProcess | None:
        """Return the node's rank; the first one answers requests, on the loopback."""
        if node.name not in server.node_names:
            return None
        command = self.dialect.command(server.model_path, server.args)
        if server.size > 1:
            command = (*command, *_ranks(node, server, master_port))
        return EngineProcess(
            server.program,
            (*command, f"--host={server.host}", f"--port={server.port}"),
            self.environment(node, server),
            rdma=needs_rdma(node, server),
        )

    def ports(self, master_port: int) -> tuple[Span, ...]:
        """Return the ports where ranks meet (`--dist-init-addr`, `--nccl-port`)."""
        return ((master_port, master_port + 1),)


def _ranks(node: Node, server: Server, master_port: int) -> tuple[str, ...]:
    master = node.head.fabric_ip
    if master is None:
        raise Failed("there is no fabric to serve over", where=node.name)
    return (
        f"--nnodes={server.size}",
        f"--node-rank={server.node_names.index(node.name)}",
        f"--dist-init-addr={master}:{master_port}",
        f"--nccl-port={master_port + 1}",
    )


SGLANG: Engine = SglangEngine()
