"""How an all-reduce grows with the nodes: that of two is measured, that of more is arithmetic.

No all-reduce of Sparks over a switch is published. What is sure are the numbers of exchanges and of
bytes (source: nccl-tests-performance); which way NCCL takes, and what a switch adds, is not.
"""

from __future__ import annotations

MEASURED = 2
"""Nodes of the measured one, which is one exchange."""


def exchanges(nodes: int) -> int:
    """Return the exchanges, one after the other, of a small one along a tree.

    >>> [exchanges(nodes) for nodes in (2, 3, 4, 8)]
    [1, 2, 2, 3]
    """
    return (nodes - 1).bit_length()


def most_exchanges(nodes: int) -> int:
    """Return those around a ring, each way: the slowest way for a small one."""
    return nodes - 1


def carried(nodes: int) -> float:
    """Return what each node sends and receives of a large one, as a share of it.

    >>> carried(2), carried(4)
    (1.0, 1.5)
    """
    return 2 * (nodes - 1) / nodes
