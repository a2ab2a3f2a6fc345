"""The copy of a model by its name or folder: which node sends it, and which get it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_cluster.config.topology import Node
from spark_cluster.engine.copies.copy import Copied, copy
from spark_cluster.engine.copies.folders import copy_folder
from spark_cluster.engine.copies.pull import must_be_the_hubs
from spark_cluster.engine.copies.state import (
    Wanted,
    complete_on,
    hub_folder,
    models_on,
    nowhere_complete,
)
from spark_cluster.engine.deployment import root_of_all
from spark_cluster.errors import UsageError
from spark_cluster.runner.play import Play


def copy_model(
    play: Play,
    name: str,
    *,
    source: str = "",
    targets: Sequence[str] = (),
    encrypt: bool = True,
    streams: int = 0,
) -> list[Copied]:
    """Copy a model or a plain folder from a node to the others.

    Args:
        name: ORG/NAME or ORG/NAME@REVISION; or the absolute path of a folder on all nodes.
        source: name of a node; by default the first one that has the model whole, and for a folder
            the first one of the run.
        targets: names of nodes; by default all others of the run.

    Raises:
        UsageError: a node is not in the run, or there is none to copy to.
        Refused: the source does not have the model whole.
        SparkClusterError: see `copy` and `copy_folder`.
    """
    nodes = named_nodes(play, (source, *targets))
    if name.startswith("/"):
        sender = nodes[source or next(iter(nodes))]
        others = _others(nodes, targets, sender, name)
        return copy_folder(play, name, sender, others, encrypt=encrypt, streams=streams)
    wanted = Wanted.named(name)
    hub = hub_folder(root_of_all(play.inventory.nodes[name] for name in nodes))
    senders = [nodes[source]] if source else list(nodes.values())
    here = models_on(play, senders, wanted, hub)
    found = complete_on(here)
    if found is None:
        raise nowhere_complete(wanted, here, "`spark-cluster models pull` fetches it from the hub")
    sender, manifest = nodes[found[0]], found[1]
    others = _others(nodes, targets, sender, wanted.repository)
    if not play.check:
        must_be_the_hubs(play, manifest, sender, others[0])
    return copy(
        play,
        manifest,
        sender,
        others,
        hub=hub,
        revision=wanted.revision,
        encrypt=encrypt,
        streams=streams,
    )


def _others(
    nodes: Mapping[str, Node], targets: Sequence[str], sender: Node, what: str
) -> list[Node]:
    """Return the nodes to copy to. Raises UsageError if there are none."""
    chosen = [nodes[name] for name in dict.fromkeys(targets or nodes) if name != sender.name]
    if not chosen:
        raise UsageError(
            f"{sender.name} has {what}, and there is no other node to copy to",
            hint="widen --limit or --to, or add a node to the inventory",
        )
    return chosen


def named_nodes(play: Play, names: Sequence[str]) -> dict[str, Node]:
    """Return the nodes of the run by name. Raises UsageError if one of `names` is not there."""
    nodes = {node.name: node for node in play.nodes}
    for name in filter(None, names):
        if name not in nodes:
            raise UsageError(f"{name} is not in this run", hint=f"it has {', '.join(nodes)}")
    return nodes
