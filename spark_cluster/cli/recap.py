"""What is counted in a run, node by node, and why a node has no result."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.events import Changing, Event, NodeFailed, Result, RunStarted


@dataclass
class Tally:
    """A node's row of the recap."""

    ok: int = 0
    change: int = 0
    unknown: int = 0
    failed: int = 0
    skipped: int = 0
    unreachable: bool = False
    seconds: float = 0.0


class Recap:
    """Counts, node by node."""

    def __init__(self) -> None:
        self.nodes: dict[str, Tally] = {}
        self.last: dict[str, str] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.nodes.update({node: Tally() for node in event.nodes})
        elif isinstance(event, Changing):
            self.last[event.node] = event.resource
        elif isinstance(event, Result):
            tally = self.nodes.setdefault(event.node, Tally())
            setattr(tally, event.verdict, getattr(tally, event.verdict) + 1)
            tally.seconds += event.seconds
            self.last.pop(event.node, None)
        elif isinstance(event, NodeFailed):
            tally = self.nodes.setdefault(event.node, Tally())
            tally.unreachable = event.unreachable
            if not event.unreachable:  # a role may refuse it before any resource could fail
                tally.failed = max(tally.failed, 1)

    def close(self) -> None:
        return None

    @property
    def changed(self) -> int:
        """Changes on all nodes."""
        return sum(tally.change for tally in self.nodes.values())


@dataclass(frozen=True)
class NodeError:
    """The reason why a node has no result.

    Attributes:
        message: what failed and where.
        hint: what to do next; empty when there is nothing to add.
    """

    message: str
    hint: str

    @classmethod
    def of(cls, error: SparkClusterError) -> NodeError:
        """Return the error as JSON has it."""
        return cls(error.message, error.hint)
