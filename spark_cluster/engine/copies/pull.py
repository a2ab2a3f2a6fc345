"""Pulling a model from the hub to one node; it goes on there when the laptop is gone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.engine.copies.state import Wanted, models_on
from spark_cluster.errors import Failed, Refused
from spark_cluster.node.store.layout import LIBRARY
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.values import Secret
from spark_cluster.resources.hub_model import HubModel
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode


@dataclass(frozen=True)
class From:
    """Where a model is pulled from, and what of it.

    Args:
        endpoint: address of a mirror of the hub; it gets the token, too.
        token_env: variable of the laptop with a hub token, when it is set.
        all_files: also the files that hold the same weights in another format.
    """

    endpoint: str = ""
    token_env: str = "HF_TOKEN"  # noqa: S105  (a name)
    all_files: bool = False

    @property
    def token(self) -> Secret | None:
        """The hub token of the laptop's environment."""
        found = os.environ.get(self.token_env, "")
        return Secret(found) if found else None


HUB = From()

LARGE = 50_000_000_000
"""Bytes to fetch from which on a warning says what they cost."""
RATE = 100_000_000
"""Bytes a second at which the time is stated; an access of 1 Gbit/s gives a little more."""


def settings_source(node: InventoryNode, endpoint: str = "") -> From:
    """Return the hub of a node, as the settings of the role `models` have it.

    Args:
        endpoint: of a mirror that is used instead.
    """
    given = node.settings_for("models").data
    return From(
        endpoint=endpoint or str(given.get("endpoint", "")),
        token_env=str(given.get("token_env", HUB.token_env)),
    )


@dataclass(frozen=True)
class Preview:
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


def pull(play: Play, node: Node, wanted: Wanted, *, hub: str, source: From = HUB) -> Manifest:
    """Have a revision in a node's hub cache, whole and checked.

    The node's work is a unit that outlives this process; the next call finds it running.

    Args:
        hub: folder of the hub cache on the node.

    Raises:
        SparkClusterError: it cannot be had, with the reason and the fix.
    """
    model = HubModel(
        wanted.repository,
        wanted.revision,
        hub,
        LIBRARY,
        token=source.token,
        endpoint=source.endpoint,
        all_files=source.all_files,
        tags=("models",),
    )
    play.apply(node, play.role("hub_library", path=LIBRARY), [model])
    have = models_on(play, [node], wanted, hub)[node.name]
    if have.manifest is None:
        raise Failed(
            f"{wanted.repository}@{wanted.revision} is not in {hub} after its pull: "
            f"{have.problem or 'its manifest is not there'}",
            where=node.name,
            hint="run the command again; spark-cluster history shows what others changed",
        )
    return have.manifest


def preview(play: Play, node: Node, wanted: Wanted, *, hub: str, source: From = HUB) -> Preview:
    """Ask the hub through a node what a pull would fetch; nothing is fetched.

    Raises:
        SparkClusterError: the hub does not say, or the library cannot be installed.
    """
    play.apply(node, play.role("hub_library", path=LIBRARY))
    found = play.session(node).request(
        "store",
        what="preview",
        hub=hub,
        repository=wanted.repository,
        revision=wanted.revision,
        token={"$secret": str(source.token or "")},
        endpoint=source.endpoint,
        all_files=source.all_files,
    )
    return Preview(found["commit"], found["size"], found["missing"], found["free"])


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
    if have.manifest is None or not have.whole:
        raise Refused(
            f"{wanted.repository}@{wanted.revision} is not whole: {have.shortfall}",
            where=node.name,
            hint="leave --offline out to fetch it; spark-cluster models copy takes it from "
            "another node that has it",
        )
    return have.manifest


def warning(repository: str, node: str, found: Preview) -> str:
    """Return what a large download costs: bytes, time, space."""
    hours = found.missing / RATE / 3600
    return (
        f"{repository}: {found.missing / 1e9:.0f} GB are to be fetched, which takes "
        f"{hours:.1f} h at {RATE / 1e6:.0f} MB/s; {node} has {found.free / 1e9:.0f} GB free"
    )
