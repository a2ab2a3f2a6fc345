"""The GPU memory of a run by phase, next to what the plan predicted; made of the run's events."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from spark_cluster.runner.events import Event, MemoryHeld, MemoryPlanned

PHASES = ("before", "loading", "ready", "stopped")
"""In their order; those of `MemoryHeld`."""


@dataclass
class MemoryOfNode:
    """The GPU memory that processes held on one node, MiB; None for a phase that was not seen.

    Attributes:
        node: its name.
        before: the run.
        loading: the largest reading while the server loaded.
        ready: when it took requests.
        stopped: after a stop.
        planned_loading, planned_ready: what the plan predicted; None where nothing was started.
    """

    node: str
    before: int | None = None
    loading: int | None = None
    ready: int | None = None
    stopped: int | None = None
    planned_loading: int | None = None
    planned_ready: int | None = None

    def __str__(self) -> str:
        """Describe it in a line."""
        read = [f"{name} {held}" for name in PHASES if (held := getattr(self, name)) is not None]
        text = f"{self.node}: {', '.join(read)} MiB"
        if self.planned_ready is None or self.ready is None:
            return text
        return f"{text}; planned {self.planned_ready} ({self.ready - self.planned_ready:+d})"


@dataclass
class MemoryPhases:
    """A sink of events that keeps what they say of memory."""

    nodes: dict[str, MemoryOfNode] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Keep a reading or a prediction; other events are not for it."""
        if isinstance(event, MemoryHeld) and event.phase in PHASES:
            setattr(self._of(event.node), event.phase, event.used_mib)
        elif isinstance(event, MemoryPlanned):
            node = self._of(event.node)
            node.planned_loading, node.planned_ready = event.loading_mib, event.ready_mib

    def close(self) -> None:
        """Nothing is open."""

    def _of(self, name: str) -> MemoryOfNode:
        return self.nodes.setdefault(name, MemoryOfNode(name))

    def to_dict(self) -> list[dict[str, Any]]:
        """Return it as `up --json` prints it."""
        return [asdict(node) for node in self.nodes.values()]
