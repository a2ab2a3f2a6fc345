"""What a node says that a revision consists of, compared with what the hub says.

Hashes show that a content is what its name says; only the hub knows which contents a commit has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_cluster.engine.copies.pull import settings_source
from spark_cluster.engine.hub_on_node import NodeDocuments
from spark_cluster.errors import Failed
from spark_cluster.models.hub.documents import DocumentSource, HubError, Listing
from spark_cluster.models.hub.library import HubLibrary

if TYPE_CHECKING:
    from spark_cluster.node.store.manifest import Manifest
    from spark_cluster.runner.play import Play
    from spark_cluster.topology import Node


def must_be_the_hubs(
    play: Play, manifest: Manifest, holder: Node, receiver: Node, *, offline: bool = False
) -> None:
    """Compare a revision on a node with the hub, before another one or our cache takes it over.

    The hub is asked from this machine, and where it is not reached from here by the receiver. Where
    neither reaches it, or `offline` forbids to ask, it is said that nothing was compared.

    Args:
        holder: the node that has it.
        receiver: the node that gets it; the same where it is taken over from another cache there.

    Raises:
        Failed: the hub's revision has other contents.
    """
    name = f"{manifest.repository}@{manifest.commit[:12]}"
    listing, why = (None, "--offline") if offline else _asked(play, manifest, receiver)
    if listing is None:
        play.note(f"{name} is not verified against the hub ({why})", warning=True, node=holder)
        return
    for path, said in differences(manifest, listing):
        raise Failed(
            f"{name} is not what the hub has: {path} {said}",
            where=holder.name,
            hint=f"someone changed it there; `spark-cluster --limit {holder.name} models prune "
            f"{manifest.repository} --apply` removes it, and the next run fetches it",
        )


def differences(manifest: Manifest, listing: Listing) -> Iterator[tuple[str, str]]:
    """Yield path and difference of each file that the hub does not have so."""
    if listing.commit != manifest.commit:
        yield "the commit", f"is {listing.commit[:12]} there"
    for file in manifest.files:
        if file.path not in listing.names:
            yield file.path, "is not in that revision"
        elif listing.blobs.get(file.path, file.blob) != file.blob:
            yield file.path, "has another content"


def _asked(play: Play, manifest: Manifest, receiver: Node) -> tuple[Listing | None, str]:
    """Return the hub's list of the revision; without one the reason."""
    endpoint = settings_source(play.inventory.nodes[receiver.name]).endpoint or None
    why = ""
    sources: tuple[DocumentSource, ...] = (
        HubLibrary(endpoint),
        NodeDocuments(play.session(receiver), endpoint),
    )
    for source in sources:
        try:
            return source.listing(manifest.repository, manifest.commit), ""
        except HubError as error:
            why = error.message
    return None, why
