"""Agents on several nodes for a question or two: no facts, no lock, no events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.connections import ssh
from spark_cluster.runner.parallel import in_parallel

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.session import Session


@contextlib.contextmanager
def agents(nodes: Sequence[InventoryNode], label: str) -> Iterator[dict[str, Session]]:
    """Start an agent as root on every node, in parallel; they end with the block.

    Args:
        label: of their processes.

    Raises:
        SparkClusterError: that of the first node that cannot be reached.
    """
    with contextlib.ExitStack() as stack:

        def begin(node: InventoryNode) -> Session:
            connection = ssh(node)
            stack.callback(connection.close)
            session = connection.session(label, become=True)
            stack.callback(session.close)
            return session

        outcomes = in_parallel({node.name: partial(begin, node) for node in nodes})
        sessions: dict[str, Session] = {}
        for name, outcome in outcomes.items():
            if isinstance(outcome, SparkClusterError):
                raise outcome
            sessions[name] = outcome
        yield sessions
