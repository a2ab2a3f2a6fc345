"""A node's error as several commands print it with `--json`."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.errors import SparkClusterError


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
