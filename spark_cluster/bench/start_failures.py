"""Servers that do not start: whether they or the cluster are at fault, and what is recorded."""

from __future__ import annotations

from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.generator import result
from spark_cluster.bench.record import CellResult
from spark_cluster.bench.run_folder import printable
from spark_cluster.errors import (
    DoesNotFit,
    Failed,
    SparkClusterError,
    Unreachable,
    VerificationFailed,
)
from spark_cluster.runner.play import Play

STAGES = frozenset({"load", "verify"})
"""Stages of `up` in which the engine runs: before them the nodes are prepared, and what fails there
fails for every server."""

LONGEST = 400
"""Characters of a reason."""


class NotStarted(Exception):
    """A server did not start; `error` says why, as `up` does."""

    def __init__(self, error: SparkClusterError) -> None:
        super().__init__(error.message)
        self.error = error


def is_of_server(play: Play, error: SparkClusterError) -> bool:
    """Return whether an error of `up` is that of the server, and others may start nevertheless.

    A node that is lost, an interrupt, a file that is wrong or a node that cannot be prepared is
    not.
    """
    if isinstance(error, DoesNotFit):
        return True
    if isinstance(error, Unreachable) or not isinstance(error, Failed | VerificationFailed):
        return False
    return play.failed_stage in STAGES and not play.out


def reason(error: SparkClusterError) -> str:
    """Return why its cells failed, in one line."""
    line = " ".join(printable(error.message).split())
    short = line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
    return f"the server did not start: {short}"


def failed(cell: PlannedCell, why: str, logs: tuple[str, ...]) -> CellResult:
    """Return the result of a cell whose server did not start."""
    return result(cell, reasons=[why], raw=logs)
