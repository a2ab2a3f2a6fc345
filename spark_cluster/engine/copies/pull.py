"""The hub of a node: pulling a model to it, and whether a revision on it is what the hub has.

A pull goes on when the laptop is gone. Hashes show that a content is what its name says; only the
hub knows which contents a commit has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.topology import Node
from spark_cluster.engine.copies.state import Wanted, models_on
from spark_cluster.engine.hub_on_node import NodeDocuments
from spark_cluster.errors import Failed, Refused
from spark_cluster.models.hub import DocumentSource, HubError, HubLibrary, Listing
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.values import Secret
from spark_cluster.resources.base import to_wire
from spark_cluster.resources.hub_model import HubModel
from spark_cluster.runner.play import Play

LARGE = 50_000_000_000
"""Bytes to fetch from which on a warning says what they cost."""
RATE = 100_000_000
"""Bytes a second at which the time is stated; an access of 1 Gbit/s gives a little more."""


@dataclass(frozen=True)
class PullPreview:
    """What a pull would do.

    Attributes:
        commit: of 40 hexadecimal digits.
        size: bytes of the wanted files.
        missing: bytes that would be fetched.
        free: bytes free where the hub cache is.
    """

    commit: str
    size: int
    missing: int
    free: int


def hub_model(
    play: Play, node: Node, wanted: Wanted, hub: str, *, endpoint: str = "", all_files: bool = False
) -> HubModel:
    """Return a revision as it is pulled to a node, by the node's settings of the role `models`.

    Args:
        hub: folder of the hub cache on the node.
        endpoint: address of a mirror that is used instead; it gets the token, too.
        all_files: also the files that hold the same weights in another format.
    """
    given = _settings(play, node)
    token = os.environ.get(str(given.get("token_env", "HF_TOKEN")), "")
    return HubModel(
        wanted.repository,
        wanted.revision,
        hub,
        token=Secret(token) if token else None,
        endpoint=endpoint or str(given.get("endpoint", "")),
        all_files=all_files,
        tags=("models",),
    )


def _settings(play: Play, node: Node) -> dict[str, Any]:
    return play.inventory.nodes[node.name].settings_for("models").data


def pull(play: Play, node: Node, model: HubModel) -> Manifest:
    """Have a revision in a node's hub cache, whole and checked.

    The node's work is a unit that outlives this process; the next call finds it running.

    Raises:
        SparkClusterError: it cannot be had, with the reason and the fix.
    """
    play.apply(node, play.role("hub_library", path=model.library), [model])
    wanted = Wanted(model.repository, model.revision)
    have = models_on(play, [node], wanted, model.cache)[node.name]
    if have.manifest is None:
        raise Failed(
            f"{model.repository}@{model.revision} is not in {model.cache} after its pull: "
            f"{have.problem or 'its manifest is not there'}",
            where=node.name,
            hint="run the command again; spark-cluster history shows what others changed",
        )
    return have.manifest


def preview(play: Play, node: Node, model: HubModel) -> PullPreview:
    """Ask the hub through a node what a pull would fetch; nothing is fetched.

    Raises:
        SparkClusterError: the hub does not say, or the library cannot be installed.
    """
    play.apply(node, play.role("hub_library", path=model.library))
    found = play.session(node).request(
        "store", what="preview", hub=model.cache, model=to_wire(model)
    )
    return PullPreview(found["commit"], found["size"], found["missing"], found["free"])


@dataclass(frozen=True)
class PulledModel:
    """A revision that is whole on a node."""

    node: str
    repository: str
    commit: str
    files: int
    bytes: int

    @classmethod
    def of(cls, node: str, manifest: Manifest) -> PulledModel:
        """Return what a node has."""
        files = len(manifest.files)
        return cls(node, manifest.repository, manifest.commit, files, manifest.size)

    def __str__(self) -> str:
        """A line about it."""
        size = f"{self.files} files, {self.bytes / 1e9:.2f} GB"
        return f"{self.repository}@{self.commit[:12]} is on {self.node}: {size}"


def present(play: Play, node: Node, wanted: Wanted, *, hub: str) -> Manifest:
    """Return the files of a revision that a node has whole; nothing but the node is asked.

    Raises:
        Refused: it lacks some.
    """
    have = models_on(play, [node], wanted, hub)[node.name]
    if have.manifest is None or not have.complete:
        raise Refused(
            f"{wanted.repository}@{wanted.revision} is not whole: {have.shortfall}",
            where=node.name,
            hint="leave --offline out to fetch it; spark-cluster models copy takes it from "
            "another node that has it",
        )
    return have.manifest


def warning(repository: str, node: str, found: PullPreview) -> str:
    """Return what a large download costs: bytes, time, space."""
    hours = found.missing / RATE / 3600
    return (
        f"{repository}: {found.missing / 1e9:.0f} GB are to be fetched, which takes "
        f"{hours:.1f} h at {RATE / 1e6:.0f} MB/s; {node} has {found.free / 1e9:.0f} GB free"
    )


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
    endpoint = str(_settings(play, receiver).get("endpoint", "")) or None
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
