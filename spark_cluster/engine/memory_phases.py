"""The GPU memory of a run by phase, next to what the plan predicted; made of the run's events."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_cluster.runner.events import Event, MemoryHeld, MemoryPlanned

PHASES = ("before", "loading", "ready", "under_load", "stopped")
"""In their order; those of `MemoryHeld`."""

LASTING = ("loading", "under_load")
"""Phases with several readings, of which the largest counts."""


@dataclass
class MemoryOfNode:
    """The GPU memory that processes held on one node, MiB; None for a phase that was not seen.

    Attributes:
        node: its name.
        before: the run.
        loading: the largest reading while the server loaded.
        ready: when it took requests.
        under_load: the largest reading during a short load after it was verified.
        stopped: after a stop.
        planned_loading, planned_ready: what the plan predicted; None where nothing was started, and
            of the CPU build of vLLM, since a plan is of a GPU's memory.
    """

    node: str
    before: int | None = None
    loading: int | None = None
    ready: int | None = None
    under_load: int | None = None
    stopped: int | None = None
    planned_loading: int | None = None
    planned_ready: int | None = None

    def __str__(self) -> str:
        """Describe it in a line."""
        read = [
            f"{name.replace('_', ' ')} {held}"
            for name in PHASES
            if (held := getattr(self, name)) is not None
        ]
        text = f"{self.node}: {', '.join(read)} MiB"
        if self.planned_ready is None or self.ready is None:
            return text
        most = self.ready if self.under_load is None else self.under_load
        beyond = most - self.planned_ready
        differs = f"{abs(beyond):,} {'more' if beyond > 0 else 'less'} than"
        return f"{text}; {differs if beyond else 'as'} planned ({self.planned_ready:,})"


@dataclass
class MemoryPhases:
    """A sink of events that keeps what they say of memory."""

    nodes: dict[str, MemoryOfNode] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Keep a reading or a prediction; other events are not for it."""
        if isinstance(event, MemoryHeld) and event.phase in PHASES:
            node, held = self._of(event.node), event.used_mib
            if event.phase in LASTING:
                held = max(held, getattr(node, event.phase) or 0)
            setattr(node, event.phase, held)
        elif isinstance(event, MemoryPlanned):
            node = self._of(event.node)
            node.planned_loading, node.planned_ready = event.loading_mib, event.ready_mib

    def close(self) -> None:
        """Nothing is open."""

    def _of(self, name: str) -> MemoryOfNode:
        return self.nodes.setdefault(name, MemoryOfNode(name))
