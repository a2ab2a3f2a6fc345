"""The parts that the results of all runs have which can change something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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


class FinishedRun(Protocol):
    """What a summary is made of."""

    id: str
    recap: Recap

    @property
    def stage_seconds(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class RunSummary:
    """How a run went.

    Attributes:
        id: of the run, as `history` and `revert` know it.
        ok: nothing failed.
        changed: changes on all nodes; in check mode those that would be made.
        seconds: by stage, and in `total` all of it.
    """

    id: str
    ok: bool
    changed: int
    seconds: dict[str, float]

    @classmethod
    def of(cls, run: FinishedRun, *, ok: bool = True) -> RunSummary:
        """Return the summary of a run that is over."""
        return cls(run.id, ok, run.recap.changed, run.stage_seconds)

    def to_dict(self, **found: Any) -> dict[str, Any]:
        """Return it as `--json` prints it, with what the run `found`."""
        return {"ok": self.ok, "changed": self.changed, **found, "seconds": self.seconds}


class NodeErrors:
    """A result of which a node may drop out without ending the run.

    Attributes:
        errors: the error of each node that dropped out, by name.
    """

    errors: Mapping[str, SparkClusterError]

    @property
    def ok(self) -> bool:
        """True if no node dropped out."""
        return not self.errors

    def raise_for_errors(self) -> None:
        """Raise the error of the first node that dropped out; do nothing when none did.

        Raises:
            SparkClusterError: that error.
        """
        for error in self.errors.values():
            raise error
