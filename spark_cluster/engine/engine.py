"""The interface of inference engines: an engine is one module with such an object.

Ours are `vllm.py` and `sglang.py`; another package adds its own by an entry point of the group
`spark_cluster.engines` (`spark_cluster.config.engines`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

from spark_cluster.config import engines
from spark_cluster.engine import proxy
from spark_cluster.node.containers import ENGINE
from spark_cluster.node.health import HEALTH_S, Completion, State, judge

if TYPE_CHECKING:
    from spark_cluster.config.engines import Dialect
    from spark_cluster.config.model_kind import Rung
    from spark_cluster.config.ports import Span
    from spark_cluster.engine.deployment import Server
    from spark_cluster.engine.endpoint import Asker, Endpoint
    from spark_cluster.engine.process import Process
    from spark_cluster.logs.start_patterns import Pattern
    from spark_cluster.node.containers import ContainerState
    from spark_cluster.runner.session import Answer
    from spark_cluster.topology import Node


class Engine(Protocol):
    """An inference engine with an OpenAI-compatible server.

    Attributes:
        name: as a recipe names it.
        dialect: how it writes its flags; whether plans are made for it.
        health: path that answers 200 while it serves.
        died: status of that path when the engine has died and its API still answers, which is
            different from that while it loads; None where there is no such status.
        loading: status of that path while it loads; None where nothing listens then.
        models: path that lists the models.
        version: path of a JSON document, and the key of the version in it.
        started: literal of its log when it takes requests.
        anchors: facts that its log tells of a start.
        rungs: rungs of readiness that it can climb.
    """

    @property
    def name(self) -> str: ...
    @property
    def dialect(self) -> Dialect: ...
    @property
    def health(self) -> str: ...
    @property
    def died(self) -> int | None: ...
    @property
    def loading(self) -> int | None: ...
    @property
    def models(self) -> str: ...
    @property
    def version(self) -> tuple[str, str]: ...
    @property
    def started(self) -> str: ...
    @property
    def anchors(self) -> tuple[Pattern, ...]: ...
    @property
    def rungs(self) -> frozenset[Rung]: ...

    def environment(self, node: Node, deployment: Server) -> dict[str, str]:
        """Return the variables of its programs on a node: interfaces, HCAs, addresses, caches.

        Raises:
            Failed: the node has no link to serve over.
        """
        ...

    def server(self, node: Node, deployment: Server, master_port: int) -> Process | None:
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


def ask_health(
    serving: Engine,
    endpoint: Endpoint,
    session: Asker,
    container: ContainerState | None = None,
    timeout: float = HEALTH_S,
) -> tuple[State, Answer]:
    """Ask a server for its health; return whether it lives, by that and its container if known.

    Status 0 of the answer, too, where the proxy answers for it.
    """
    answer = endpoint.request(session, serving.health, timeout=timeout)
    if proxy.refused_by_proxy(answer.status, answer.body):
        answer = replace(answer, status=0)
    return judge_health(serving, answer.status, container), answer


def judge_health(
    serving: Engine,
    health: int,
    container: ContainerState | None = None,
    completion: Completion | None = None,
) -> State:
    """Return whether a server of an engine lives, by the status of its /health; see `judge`."""
    return judge(container, health, completion, died=serving.died, loading=serving.loading)
