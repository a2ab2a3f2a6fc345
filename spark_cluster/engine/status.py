"""The state of serving as `status` reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.engine.node_states import NodeState
from spark_cluster.engine.proxy import Access
from spark_cluster.engine.ray import RayNode
from spark_cluster.engine.server_states import ModelState, ServerState

if TYPE_CHECKING:
    from spark_cluster.engine.warmth import Warmth


@dataclass(frozen=True)
class Status:
    """The cluster's serving state.

    Attributes:
        access: who can reach the endpoint, and how it is guarded.
        state: `stopped` (nothing is there), `serving` (a completion came and nothing is wrong),
            `starting` (containers run, not healthy yet), `degraded` (answers, but something is
            wrong) or `failed` (should serve and does not).
        problems: what is wrong, as text; empty when nothing is.
        kind: of the model: chat, embedding, reranking or transcription; None without a server.
        overrides: engine arguments that `up` was given in place of the recipe's, as options.
        caches: whether the next launch of the inventory's recipe is warm; None without a recipe.
        replicas: the servers behind the endpoint, where there are several of one model.
        data_parallel: ranks of the server, each on a node of its own.
        models: the models, where the endpoint has several; `model`, `tp` and `kind` are None then.
        tuned: files with tuned parameters of kernels that the server was started with.
    """

    state: str
    nodes: list[NodeState]
    ray: list[RayNode]
    endpoint: str | None = None
    access: Access | None = None
    model: str | None = None
    tp: int | None = None
    problems: tuple[str, ...] = ()
    kind: ModelKind | None = None
    overrides: str = ""
    caches: Warmth | None = None
    replicas: tuple[ServerState, ...] = ()
    models: tuple[ModelState, ...] = ()
    tuned: tuple[str, ...] = ()
    data_parallel: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        return {
            "state": self.state,
            "nodes": [node.to_dict() for node in self.nodes],
            "ray": {"nodes": len(self.ray), "gpus": sum(node.gpus for node in self.ray)},
            "endpoint": self.endpoint,
            "access": self.access.to_dict() if self.access is not None else None,
            "model": self.model,
            "kind": self.kind,
            "tp": self.tp,
            "data_parallel": self.data_parallel,
            "overrides": self.overrides,
            "tuned": list(self.tuned),
            "replicas": [replica.to_dict() for replica in self.replicas],
            **({"models": [model.to_dict() for model in self.models]} if self.models else {}),
            "caches": self.caches.to_dict() if self.caches is not None else None,
            "problems": list(self.problems),
        }
