"""Repairing models: damaged contents are removed, and only these are fetched or copied again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.engine.copies.copy import copy
from spark_cluster.engine.copies.hub_check import must_be_the_hubs
from spark_cluster.engine.copies.pull import pull
from spark_cluster.engine.copies.state import Nodes, OnProgress, Wanted, models_on
from spark_cluster.engine.copies.upkeep import VerifiedModel, short, stored, verify
from spark_cluster.node.sizes import gigabytes

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

    def __str__(self) -> str:
        """A line about it."""
        source = f", {gigabytes(self.fetched)} from {self.source}" if self.source else ""
        name = f"{self.node}  {short(self.repository, self.commit)}"
        return f"{name}  {self.removed} damaged removed, {self.links} links made{source}"


def repair(
    play: Play, hubs: Mapping[str, str], names: Sequence[str], on_progress: OnProgress
) -> list[RepairedModel]:
    """Verify models, remove what is damaged, and have it again: from a node where the same
    revision is sound, else from the hub.

    Args:
        hubs: node to its hub cache.
        names: ORG/NAME or ORG/NAME@REVISION; empty for all.

    Raises:
        SparkClusterError: a name is on no node, or a content cannot be had again.
    """
    nodes = Nodes(play.sessions, hubs)
    found = verify(nodes, stored(nodes, []), names, on_progress)
    at = {node.name: node for node in play.nodes}
    repaired = []
    for revision in dict.fromkeys((one.repository, one.commit) for one in found):
        group = [one for one in found if (one.repository, one.commit) == revision]
        sound = [at[one.node] for one in group if one.sound and one.node in at]
        for one in group:
            if not one.sound and one.node in at:
                repaired.append(_repaired(play, nodes, one, at[one.node], sound))
    return repaired


def _repaired(
    play: Play, nodes: Nodes, model: VerifiedModel, node: Node, sound: Sequence[Node]
) -> RepairedModel:
    wanted, hub = Wanted(model.repository, model.commit), nodes.hubs[node.name]
    removed = links = 0
    if not model.error:
        revision = {"repository": model.repository, "commit": model.commit}
        answer = nodes.only(node.name).ask("remove_damaged", None, **revision, paths=model.damaged)
        removed, links = (int(answer[node.name][key]) for key in ("removed", "links"))
    have = models_on(play, [node], wanted, hub)[node.name]
    source, size = "", have.missing_bytes
    if not have.whole:
        manifest = _manifest(play, nodes, sound, wanted)
        if manifest is not None:
            must_be_the_hubs(play, manifest, sound[0], node)
            copy(play, manifest, sound[0], [node], hub=nodes.hubs[sound[0].name])
            source, size = sound[0].name, size or (0 if have.manifest else manifest.size)
        else:
            pull(play, node, wanted, hub=hub)
            source = "hub"
    names = (node.name, model.repository, model.commit)
    return RepairedModel(*names, removed, links, size, source)


def _manifest(play: Play, nodes: Nodes, sound: Sequence[Node], wanted: Wanted) -> Manifest | None:
    """The files of a revision, as a node has them where it is sound."""
    if not sound:
        return None
    name = sound[0].name
    return models_on(play, sound[:1], wanted, nodes.hubs[name])[name].manifest
