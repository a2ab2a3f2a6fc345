"""The memory of the nodes before weights are loaded, and what guards it while they are.

On a Spark the page cache, the GPU and everything else share one memory. A GPU with memory of its
own needs none of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from spark_cluster.engine.deployment import Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import RAY
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.facts.parsers import HIGH_PRESSURE, free_blocks
from spark_cluster.node import load_guard, memory
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

FRAGMENTED = (
    "{}, after caches were dropped and memory was compacted: weights may load slowly, or the "
    "driver refuses memory (NV_ERR_NO_MEMORY). Where the load fails or stalls, reboot the node"
)
PRESSURE = (
    "programs of the node have waited for memory for {:g} % of the last 10 s before the load: see "
    "what holds it (`spark-cluster vram`, `free -h` there)"
)


def prepare(play: Play, nodes: Sequence[Node]) -> None:
    """Give the page cache of each node back and compact its memory, before an engine is started.

    The user is told where memory stays fragmented, or the node was short of it already.
    """
    for node, found in _ask(play, nodes, "prepare"):
        if found["problem"]:
            play.note(
                f"the page cache was not dropped: {found['problem']}", warning=True, node=node
            )
        if found["pressure"] is not None and found["pressure"] >= HIGH_PRESSURE:
            play.note(PRESSURE.format(found["pressure"]), warning=True, node=node)
        blocks = free_blocks(found["buddyinfo"], found["page_size"])
        if blocks is not None and blocks.fragmented:
            play.note(FRAGMENTED.format(blocks), warning=True, node=node)


class LoadGuard:
    """The guard of the nodes of one server, from when it is seen to load until it is ready.

    Args:
        limit_s: seconds after which the guard ends by itself.
    """

    def __init__(self, play: Play, server: Server, limit_s: float) -> None:
        self._play, self._nodes, self._server = play, server.nodes, server.program
        self._health = server.endpoint.of_engine.path(engine(server.engine).health)
        self._limit_s, self._begun = limit_s, False

    def begin(self) -> None:
        """Start it on each node, once; it goes on when the laptop is gone."""
        if self._begun:
            return
        self._begun = True
        told = {"server": self._server, "programs": [self._server, RAY], "limit_s": self._limit_s}
        head, *others = self._nodes
        try:
            _ask(self._play, [head], "begin", health=self._health, **told)
            _ask(self._play, others, "begin", **told)
        except Failed as error:
            what = "memory is not guarded while weights load"
            self._play.note(f"{error.where}: {what}: {error.message}", warning=True)

    def ended(self) -> tuple[str, load_guard.Reason] | None:
        """Return the node on which it has ended the load, and why; None where it has not."""
        files = {"reason": load_guard.reason_file(self._server)}
        sessions = {n.name: self._play.session(n) for n in self._nodes if self._begun}
        waiting = {name: one.submit("gather", files=files) for name, one in sessions.items()}
        found = {n: load_guard.parse(p.wait()["files"]["reason"]) for n, p in waiting.items()}
        return next(((name, reason) for name, reason in found.items() if reason), None)

    def end(self) -> None:
        """End it; one on a node that is lost ends by itself."""
        if self._begun:
            self._begun = False
            with contextlib.suppress(SparkClusterError):
                _ask(self._play, self._nodes, "end", server=self._server)


def _ask(play: Play, nodes: Sequence[Node], what: str, **told: Any) -> list[tuple[Node, Any]]:
    """Ask the nodes whose memory is the GPU's, all at once."""
    waiting = [
        (node, play.session(node).submit("load_guard", memory.RECLAIM_S, what=what, **told))
        for node in nodes
        if not node.facts.gpu_memory.of_gpu
    ]
    return [(node, pending.wait()) for node, pending in waiting]
