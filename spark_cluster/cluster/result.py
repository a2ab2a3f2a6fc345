"""The part that the results of all runs have which can change something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.events import Recap


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
