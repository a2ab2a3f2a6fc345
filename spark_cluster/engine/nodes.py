"""The selection of the nodes that serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from spark_cluster.errors import Refused


class Member(Protocol):
    """A node, of the inventory or as roles see it."""

    @property
    def name(self) -> str: ...

    @property
    def is_head(self) -> bool: ...


M = TypeVar("M", bound=Member)


def serving(nodes: Iterable[M], tp: int, count: int | None = None) -> tuple[list[M], list[M]]:
    """Return the nodes that serve, the head first, and those that do not.

    Args:
        count: nodes that serve, where that is not the tensor-parallel size.

    Raises:
        Refused: there are fewer than those, or the head is not among them.
    """
    chosen = sorted(nodes, key=lambda node: not node.is_head)
    if not chosen or not chosen[0].is_head:
        raise Refused("the head is not among the chosen nodes", hint="widen --limit")
    wanted = tp if count is None else count
    if len(chosen) < wanted:
        names = ", ".join(node.name for node in chosen)
        what = (
            f"--tp {tp}"
            if wanted == tp
            else f"--tp {tp} with pipeline stages or data-parallel ranks"
        )
        halved = 1 << (len(chosen).bit_length() - 1)  # of three nodes two: heads divide by it
        smaller = f", or use --tp {halved}" if wanted == tp else ""
        raise Refused(
            f"{what} needs {wanted} nodes; there {'is' if len(chosen) == 1 else 'are'} "
            f"{len(chosen)} ({names})",
            hint=f"add another Spark to the inventory, widen --limit{smaller}",
        )
    return chosen[:wanted], chosen[wanted:]


def groups(names: Sequence[str], tp: int, replicas: int) -> list[list[str]]:
    """Return the nodes of each replica.

    Args:
        names: of the nodes, the head first.

    Raises:
        Refused: there are too few.
    """
    if len(names) < tp * replicas:
        raise Refused(
            f"{replicas} replicas at TP={tp} need {tp * replicas} nodes; there are {len(names)} "
            f"({', '.join(names)})",
            hint="add another Spark to the inventory, or widen --limit",
        )
    return [list(names[at : at + tp]) for at in range(0, tp * replicas, tp)]
