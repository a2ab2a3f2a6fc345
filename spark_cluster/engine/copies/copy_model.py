"""The copy of a model by its name or folder: which node sends it, and which get it."""

from __future__ import annotations

from collections.abc import Sequence

from spark_cluster.engine.caches import root_of_all
from spark_cluster.engine.copies.copy import Copied, copy
from spark_cluster.engine.copies.folders import copy_folder
from spark_cluster.engine.copies.pull import must_be_the_hubs
from spark_cluster.engine.copies.state import Wanted, hub_folder, models_on, nowhere_whole, whole_on
from spark_cluster.errors import UsageError
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node


def copy_model(
    play: Play,
    wanted: Wanted,
    *,
    source: str = "",
    targets: Sequence[str] = (),
    encrypt: bool = True,
    streams: int = 0,
) -> list[Copied]:
    """Copy a model from a node that has it whole to the others.

    Args:
        source: name of a node; by default the first one that has it.
        targets: names of nodes; by default all others of the run.

    Raises:
        UsageError: a node is not in the run, or there is none to copy to.
        Refused: the source does not have it whole.
        SparkClusterError: see `copy`.
    """
    nodes = named_nodes(play, (source, *targets))
    hub = hub_folder(root_of_all(play.inventory.nodes[name] for name in nodes))
    senders = [nodes[source]] if source else list(nodes.values())
    here = models_on(play, senders, wanted, hub)
    found = whole_on(here)
    if found is None:
        raise nowhere_whole(wanted, here, "`spark-cluster models pull` fetches it from the hub")
    sender, manifest = nodes[found[0]], found[1]
    chosen = [nodes[name] for name in dict.fromkeys(targets or nodes)]
    others = [node for node in chosen if targets or node.name != sender.name]
    if not others:
        raise UsageError(
            f"{sender.name} has {wanted.repository}, and there is no other node in this run",
            hint="widen --limit, or add a node to the inventory",
        )
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


def copy_path(
    play: Play,
    path: str,
    *,
    source: str = "",
    targets: Sequence[str] = (),
    encrypt: bool = True,
    streams: int = 0,
) -> list[Copied]:
    """Copy a plain folder from a node to the others.

    Args:
        path: absolute, the same on all nodes.
        source: name of a node; by default the first one of the run.
        targets: names of nodes; by default all others of the run.

    Raises:
        UsageError: a node is not in the run, or there is none to copy to.
        SparkClusterError: see `copy_folder`.
    """
    nodes = named_nodes(play, (source, *targets))
    sender = nodes[source or next(iter(nodes))]
    others = [nodes[name] for name in dict.fromkeys(targets or nodes) if name != sender.name]
    if not others:
        raise UsageError("there is no other node to copy to", hint="widen --limit or --to")
    return copy_folder(play, path, sender, others, encrypt=encrypt, streams=streams)


def named_nodes(play: Play, names: Sequence[str]) -> dict[str, Node]:
    """Return the nodes of the run by name. Raises UsageError if one of `names` is not there."""
    nodes = {node.name: node for node in play.nodes}
    for name in filter(None, names):
        if name not in nodes:
            raise UsageError(f"{name} is not in this run", hint=f"it has {', '.join(nodes)}")
    return nodes
