"""The result of `down`: who held GPU memory before, and now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_cluster.engine.vram import NodeVram


@dataclass(frozen=True)
class Stopped:
    """The memory held before and after a stop."""

    before: list[NodeVram]
    now: list[NodeVram]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `down --json` prints it."""
        return {
            "vram": {
                "nodes": [reading.to_dict() for reading in self.now],
                "before": [reading.to_dict() for reading in self.before],
            }
        }
