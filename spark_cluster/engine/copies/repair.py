"""Repairing models: damaged contents are removed, and only these are fetched or copied again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.engine.copies.state import Wanted, all_models_on
from spark_cluster.engine.copies.upkeep import Nodes, OnProgress, VerifiedModel, stored, verify

if TYPE_CHECKING:
    from spark_cluster.node.store.manifest import Manifest
    from spark_cluster.runner.play import Play
    from spark_cluster.topology import Node


@dataclass(frozen=True)
class RepairedModel:
    """A revision on a node that was damaged or not whole.

    Attributes:
        removed: damaged contents.
        links: links that were made again.
        fetched: bytes that were fetched again.
        source: the node that they were copied from; "hub" for a pull; empty for neither.
    """

    node: str
    repository: str
    commit: str
    removed: int
    links: int
    fetched: int
    source: str


@dataclass(frozen=True)
class Fetching:
    """How missing contents are had again; the functions of `pull` and `copy`.

    Args:
        pull: gets a node and a revision.
        copy: gets the files, the node that has them, and the nodes that lack some.
    """

    pull: Callable[[Node, Wanted], object]
    copy: Callable[[Manifest, Node, Sequence[Node]], object]


def fetching(play: Play, hubs: Mapping[str, str]) -> Fetching:
    """Return the pull and the copy of this run."""
    from spark_cluster.engine.copies.copy import copy as copied
    from spark_cluster.engine.copies.hub_check import must_be_the_hubs
    from spark_cluster.engine.copies.pull import pull as pulled

    def pull(node: Node, wanted: Wanted) -> object:
        return pulled(play, node, wanted, hub=hubs[node.name])

    def copy(manifest: Manifest, source: Node, targets: Sequence[Node]) -> object:
        must_be_the_hubs(play, manifest, source, targets[0])
        return copied(play, manifest, source, targets, hub=hubs[source.name])

    return Fetching(pull, copy)


def repair(
    play: Play, nodes: Nodes, names: Sequence[str], on_progress: OnProgress, again: Fetching
) -> list[RepairedModel]:
    """Verify models, remove what is damaged, and have it again: from a node where the same
    revision is sound, else from the hub.

    Args:
        names: ORG/NAME or ORG/NAME@REVISION; empty for all.

    Raises:
        SparkClusterError: a name is on no node, or a content cannot be had again.
    """
    found = verify(nodes, stored(nodes, []), names, on_progress)
    at = {node.name: node for node in play.nodes}
    repaired = []
    for revision in dict.fromkeys((one.repository, one.commit) for one in found):
        group = [one for one in found if (one.repository, one.commit) == revision]
        sound = [at[one.node] for one in group if one.sound and one.node in at]
        for one in group:
            if not one.sound and one.node in at:
                repaired.append(_repaired(nodes, one, at[one.node], sound, again))
    return repaired


def _repaired(
    nodes: Nodes, model: VerifiedModel, node: Node, sound: Sequence[Node], again: Fetching
) -> RepairedModel:
    wanted = Wanted(model.repository, model.commit)
    removed = links = 0
    if not model.error:
        revision = {"repository": model.repository, "commit": model.commit}
        answer = nodes.only(node.name).ask("remove_damaged", None, **revision, paths=model.damaged)
        removed, links = (int(answer[node.name][key]) for key in ("removed", "links"))
    [have] = all_models_on({node.name: nodes.sessions[node.name]}, [wanted], nodes.hubs)[node.name]
    source, size = "", have.missing_bytes
    if not have.whole:
        manifest = _manifest(nodes, sound, wanted)
        if manifest is not None:
            again.copy(manifest, sound[0], [node])
            source, size = sound[0].name, size or (0 if have.manifest else manifest.size)
        else:
            again.pull(node, wanted)
            source = "hub"
    names = (node.name, model.repository, model.commit)
    return RepairedModel(*names, removed, links, size, source)


def _manifest(nodes: Nodes, sound: Sequence[Node], wanted: Wanted) -> Manifest | None:
    """The files of a revision, as a node has them where it is sound."""
    if not sound:
        return None
    name = sound[0].name
    return all_models_on({name: nodes.sessions[name]}, [wanted], nodes.hubs)[name][0].manifest
