"""Models of the hub on all nodes that serve them: fetched by one, and copied to the others.

What has arrived on the node that fetches is sent on while the rest is still on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.engine.copies.copy import copy
from spark_cluster.engine.copies.hub_check import must_be_the_hubs
from spark_cluster.engine.copies.pull import (
    LARGE,
    Preview,
    preview,
    pull,
    settings_source,
    warning,
)
from spark_cluster.engine.copies.state import Have, Wanted, models_on
from spark_cluster.engine.copies.stored import Stored, folder
from spark_cluster.errors import Refused, SparkClusterError
from spark_cluster.node.sizes import gigabytes
from spark_cluster.node.store.layout import KEPT_FREE, repository_of
from spark_cluster.node.store.manifest import Manifest

if TYPE_CHECKING:
    from spark_cluster.engine.deployment import Deployment
    from spark_cluster.runner.play import Play
    from spark_cluster.topology import Node

ADOPT_S = 6 * 3600.0
"""Longest time for taking a model over from another cache of a node, seconds."""
LOOK_S = 1.0
"""Seconds between two looks whether a pull has said what it fetches."""


def must_be_there(stored: Stored, *, adopt: bool) -> None:
    """Refuse to go on without the hub where no node has a model.

    Args:
        adopt: other caches of the nodes count, too.

    Raises:
        Refused: with what each of them lacks.
    """
    for wanted in stored.wanted:
        found = stored.of(wanted)
        if not any(have.whole or (adopt and have.adoptable) for have in found.values()):
            reasons = "; ".join(f"{node}: {have.shortfall}" for node, have in found.items())
            raise Refused(
                f"no node has {wanted.repository}@{wanted.revision} whole ({reasons})",
                hint="leave --offline out to fetch it from the hub"
                + ("" if adopt else ", or give --adopt to take it over from where a node has it"),
            )


def bring(
    play: Play, nodes: Sequence[Node], stored: Stored, *, offline: bool = False
) -> dict[str, str]:
    """Have the models of a recipe on all nodes that serve; repository to folder.

    A node that has one sends it to the others. One that root or the login user has in a hub cache
    of a node is taken over where the user wants that. What no node has is fetched from the hub, by
    one node. What a node or another cache says of a revision is compared with the hub.

    Raises:
        Refused: a disk is too small.
        SparkClusterError: it cannot be fetched or copied, with the reason.
    """
    now = play.known_now(nodes)
    found = {}
    for wanted in stored.wanted:
        model = _Model(play, now, stored.hub, wanted, stored.of(wanted), offline)
        found[wanted.repository] = folder(stored.hub, wanted, model.bring(stored))
    return found


@dataclass(frozen=True)
class _Model:
    """One model that is to be on all nodes that serve.

    Attributes:
        nodes: the head first.
        found: node to what it has.
    """

    play: Play
    nodes: Sequence[Node]
    hub: str
    wanted: Wanted
    found: Mapping[str, Have]
    offline: bool = False

    def bring(self, stored: Stored) -> str:
        """Have it on all nodes; return its commit."""
        chosen = stored.chosen(self.wanted) or self._adopt()
        if chosen is None:
            return self._fetch().commit
        name, manifest = chosen
        lacking = stored.lacking(self.wanted, manifest.commit)
        source, others = self._split(name)
        targets = [node for node in others if node.name in lacking]
        if targets:
            self._copy(manifest, source, targets)
        return manifest.commit

    def _split(self, name: str) -> tuple[Node, list[Node]]:
        """Return the node of this name, and the others."""
        source = next(node for node in self.nodes if node.name == name)
        return source, [node for node in self.nodes if node.name != name]

    def _adopt(self) -> tuple[str, Manifest] | None:
        """Take over what another tool has downloaded to a node; None where none has."""
        for node in self.nodes:
            have = self.found[node.name]
            if have.adoptable is None or not self._wants(node, have.adoptable, have.elsewhere):
                continue
            must_be_the_hubs(self.play, have.adoptable, node, node, offline=self.offline)
            what = f"{self.wanted.repository} from {have.elsewhere}"
            self.play.note(f"takes over {what}, each byte checked", node=node)
            self.play.session(node).request(
                "store",
                self.play.progress_of(node, what),
                what="adopt",
                hub=self.hub,
                repository=self.wanted.repository,
                commit=have.adoptable.commit,
                other=have.elsewhere,
                revision=self.wanted.revision,
                timeout=ADOPT_S,
            )
            return node.name, have.adoptable
        return None

    def _wants(self, node: Node, manifest: Manifest, place: str) -> bool:
        """Return whether the user wants a model of another cache: by --adopt, or when asked."""
        options, name = self.play.options, self.wanted.repository
        if options.adopt:
            return True
        about = f"{name} ({gigabytes(manifest.size)}) is in {place} of {node.name}"
        if options.consent is not None:
            return options.consent(f"{about}: take a copy of it instead of downloading it?")
        self.play.note(f"{about}; with --adopt a copy of it would be taken", node=node)
        return False

    def _fetch(self) -> Manifest:
        """Fetch it by the node that has most of it, and copy it to the others meanwhile."""
        first = min(self.nodes, key=lambda node: -self.found[node.name].present)
        node, others = self._split(first.name)
        source = settings_source(self.play.inventory.nodes[node.name])
        seen = preview(self.play, node, self.wanted, hub=self.hub, source=source)
        self._must_fit(others, seen)
        if seen.missing > LARGE:
            text = warning(self.wanted.repository, node.name, seen)
            self.play.note(text, warning=True, node=node)
        if not others:
            return pull(self.play, node, self.wanted, hub=self.hub, source=source)
        ended = threading.Event()

        def pulling() -> Manifest:
            try:
                return pull(self.play, node, self.wanted, hub=self.hub, source=source)
            finally:
                ended.set()

        def copying() -> str:
            manifest = self._described(node, seen.commit, ended)
            if manifest is None:
                return ""
            self._copy(manifest, node, others, follow=True)
            return manifest.commit

        pulled: Manifest
        pulled, copied = self.play.together(pulling, copying)
        if copied != pulled.commit:  # the branch has moved meanwhile, or the pull was quicker
            self._copy(pulled, node, others)
        return pulled

    def _described(self, node: Node, commit: str, ended: threading.Event) -> Manifest | None:
        """Wait until the pull has written what it fetches; None if it has ended before."""
        pinned = Wanted(self.wanted.repository, commit)
        while not ended.is_set():
            have = models_on(self.play, [node], pinned, self.hub)[node.name]
            if have.manifest is not None:
                return have.manifest
            ended.wait(LOOK_S)
        return None

    def _must_fit(self, nodes: Sequence[Node], seen: Preview) -> None:
        """Look at the disks of those that it is copied to, before the first byte is fetched.

        Raises:
            Refused: one is too small.
        """
        for node in nodes:
            have = self.found[node.name]
            missing = seen.size - (have.present if have.commit == seen.commit else 0)
            if missing + KEPT_FREE > have.free:
                raise Refused(
                    f"{self.wanted.repository} needs {gigabytes(missing)} more in the hub cache, "
                    f"and {gigabytes(KEPT_FREE)} that stay free; {gigabytes(have.free)} are free",
                    where=node.name,
                    hint="spark-cluster models prune shows what can be removed",
                )

    def _copy(
        self, manifest: Manifest, source: Node, targets: Sequence[Node], *, follow: bool = False
    ) -> None:
        """Copy it, and say what was moved."""
        must_be_the_hubs(self.play, manifest, source, targets[0], offline=self.offline)
        done = copy(
            self.play,
            manifest,
            source,
            targets,
            hub=self.hub,
            revision=self.wanted.revision,
            follow=follow,
        )
        for one in done:
            if one.sender:
                self.play.note(f"{self.wanted.repository} on {one}")


def mark_used(play: Play, deployment: Deployment) -> None:
    """Note on the nodes that these revisions serve now, by which pruning chooses.

    A server that serves is not failed for it: what goes wrong here is only noted.
    """
    waiting = [
        (node, play.session(node).submit("store", what="used", **_revision(str(model.node_path))))
        for server in deployment.recipes
        for model in (server.recipe.model, server.recipe.drafter)
        if model is not None and model.in_hub_cache
        for node in server.nodes
    ]
    for node, pending in waiting:
        try:
            pending.wait()
        except SparkClusterError as error:
            play.note(f"its use could not be noted: {error.message}", warning=True, node=node)


def _revision(path: str) -> dict[str, str]:
    """Return hub cache, repository and commit of a model's folder."""
    repository, _, commit = path.partition("/snapshots/")
    hub, _, name = repository.rpartition("/")
    return {"hub": hub, "repository": repository_of(name), "commit": commit}
