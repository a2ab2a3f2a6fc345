"""The selection of the nodes that serve."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from spark_cluster.errors import Refused


class Member(Protocol):
    """A node, of the inventory or as roles see it."""

    @property
    def name(self) -> str: ...

    @property
    def is_head(self) -> bool: ...


M = TypeVar("M", bound=Member)


def serving(nodes: Iterable[M], tp: int) -> tuple[list[M], list[M]]:
    """Return the nodes that serve, the head first, and those that do not.

    Raises:
        Refused: there are fewer than `tp`, or the head is not among them.
    """
    chosen = sorted(nodes, key=lambda node: not node.is_head)
    if not chosen or not chosen[0].is_head:
        raise Refused("the head is not among the chosen nodes", hint="widen --limit")
    if len(chosen) < tp:
        names = ", ".join(node.name for node in chosen)
        raise Refused(
            f"--tp {tp} needs {tp} nodes; there {'is' if len(chosen) == 1 else 'are'} "
            f"{len(chosen)} ({names})",
            hint=f"add the other Spark to the inventory, widen --limit, or use --tp {len(chosen)}",
        )
    return chosen[:tp], chosen[tp:]
