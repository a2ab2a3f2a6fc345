"""What the transfers of a run share: its nodes as they are now, and the progress that they show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spark_cluster.runner.events import Progress

if TYPE_CHECKING:
    from spark_cluster.runner.play import Play
    from spark_cluster.topology import Node


def current(play: Play, nodes: Sequence[Node]) -> list[Node]:
    """Return the same nodes, in the same order, as the run knows them now: the fabric's addresses
    may have come in this very run."""
    known = {node.name: node for node in play.nodes}
    return [known[node.name] for node in nodes if node.name in known]


def showing(play: Play, node: Node, what: str) -> Callable[[dict[str, Any]], None]:
    """Return a listener to a node's answer that shows its progress as that of `what`."""

    def on_event(event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            play.bus.emit(Progress(node.name, what, str(event["text"])))

    return on_event
