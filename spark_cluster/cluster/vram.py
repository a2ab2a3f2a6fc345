"""Read who holds GPU memory on the nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.engine.vram import NodeVram


@dataclass(frozen=True)
class VramResult:
    """One reading of every node."""

    nodes: tuple[NodeVram, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `vram --json` prints it."""
        return {"nodes": [reading.to_dict() for reading in self.nodes]}


def vram(opened: Opened) -> VramResult:
    """Take one reading of every selected node.

    Raises:
        SparkClusterError: a node is not reached, or its nvidia-smi does not answer.
    """
    from spark_cluster.engine.programs import models_by_process
    from spark_cluster.engine.vram import sample

    with opened.dialer.sessions(opened.nodes, "vram") as sessions:
        readings, models = sample(sessions), models_by_process(sessions)
    return VramResult(tuple(replace(r, models=models.get(r.name, {})) for r in readings))
