"""Models of the hub on all nodes that serve them: fetched by one, and copied to the others.

What has arrived on the node that fetches is sent on while the rest is still on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import Refused, SparkClusterError
from spark_cluster.node.store.layout import KEPT_FREE, repository_of
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.runner.events import Progress
from spark_cluster.transfer.copy import copy
from spark_cluster.transfer.pull import (
    LARGE,
    Preview,
    preview,
    pull,
    settings_source,
    warning,
)
from spark_cluster.transfer.state import Have, Wanted, models_on
from spark_cluster.transfer.stored import Stored, folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_cluster.runner.play import Play
    from spark_cluster.serving.plan import ServePlan
    from spark_cluster.topology import Node

ADOPT_S = 6 * 3600.0
"""Longest time for taking a model over from another cache of a node, seconds."""
LOOK_S = 1.0
"""Seconds between two looks whether a pull has said what it fetches."""


def must_be_there(stored: Stored) -> None:
    """Refuse to go on without the hub where no node has a model.

    Raises:
        Refused: with what each of them lacks.
    """
    for wanted in stored.wanted:
        found = stored.of(wanted)
        if not any(have.whole or have.adoptable for have in found.values()):
            reasons = "; ".join(f"{node}: {have.shortfall}" for node, have in found.items())
            raise Refused(
                f"no node has {wanted.repository}@{wanted.revision} whole ({reasons})",
                hint="leave --offline out to fetch it from the hub",
            )


def bring(play: Play, nodes: Sequence[Node], stored: Stored) -> dict[str, str]:
    """Have the models of a recipe on all nodes that serve; repository to folder.

    A node that has one sends it to the others. One that another tool has downloaded to a node is
    taken over. What no node has is fetched from the hub, by one node.

    Raises:
        Refused: a disk is too small.
        SparkClusterError: it cannot be fetched or copied, with the reason.
    """
    return {
        wanted.repository: folder(stored.hub, wanted, _bring(play, nodes, stored, wanted))
        for wanted in stored.wanted
    }


def _bring(play: Play, nodes: Sequence[Node], stored: Stored, wanted: Wanted) -> str:
    """Have one model on all nodes; return its commit."""
    chosen = stored.chosen(wanted) or _adopt(play, nodes, stored, wanted)
    if chosen is None:
        return _fetch(play, nodes, stored, wanted).commit
    name, manifest = chosen
    lacking = stored.lacking(wanted, manifest.commit)
    source, others = _split(nodes, name)
    targets = [node for node in others if node.name in lacking]
    if targets:
        copy(play, manifest, source, targets, hub=stored.hub, revision=wanted.revision)
    return manifest.commit


def _split(nodes: Sequence[Node], name: str) -> tuple[Node, list[Node]]:
    """Return the node of this name, and the others."""
    source = next(node for node in nodes if node.name == name)
    return source, [node for node in nodes if node.name != name]


def _adopt(
    play: Play, nodes: Sequence[Node], stored: Stored, wanted: Wanted
) -> tuple[str, Manifest] | None:
    """Take a model over that another tool has downloaded to a node; None where none has."""
    for node in nodes:
        have = stored.of(wanted)[node.name]
        if have.adoptable is None:
            continue
        play.note(
            f"{wanted.repository} is taken over from {have.elsewhere}, each byte checked", node=node
        )
        what = f"{wanted.repository} from {have.elsewhere}"
        play.session(node).request(
            "store",
            _shown(play, node, what),
            what="adopt",
            hub=stored.hub,
            repository=wanted.repository,
            commit=have.adoptable.commit,
            other=have.elsewhere,
            revision=wanted.revision,
            timeout=ADOPT_S,
        )
        return node.name, have.adoptable
    return None


def _shown(play: Play, node: Node, what: str) -> Callable[[dict[str, Any]], None]:
    def on_event(event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            play.bus.emit(Progress(node.name, what, str(event["text"])))

    return on_event


def _fetch(play: Play, nodes: Sequence[Node], stored: Stored, wanted: Wanted) -> Manifest:
    """Fetch a model by one node, and copy it to the others meanwhile."""
    found = stored.of(wanted)
    first = min(nodes, key=lambda node: -_begun(found[node.name]))
    node, others = _split(nodes, first.name)
    source = settings_source(play.inventory.nodes[node.name])
    seen = preview(play, node, wanted, hub=stored.hub, source=source)
    _must_fit(others, found, seen, wanted)
    if seen.missing > LARGE:
        play.note(warning(wanted.repository, node.name, seen), warning=True, node=node)
    if not others:
        return pull(play, node, wanted, hub=stored.hub, source=source)
    ended = threading.Event()

    def pulling() -> Manifest:
        try:
            return pull(play, node, wanted, hub=stored.hub, source=source)
        finally:
            ended.set()

    def copying() -> str:
        pinned = Wanted(wanted.repository, seen.commit)
        manifest = _described(play, node, pinned, stored.hub, ended)
        if manifest is None:
            return ""
        copy(play, manifest, node, others, hub=stored.hub, revision=wanted.revision, follow=True)
        return manifest.commit

    pulled: Manifest
    pulled, copied = play.together(pulling, copying)
    if copied != pulled.commit:  # the branch has moved meanwhile, or the pull was quicker
        copy(play, pulled, node, others, hub=stored.hub, revision=wanted.revision)
    return pulled


def _begun(have: Have) -> int:
    """Bytes that a node has of it, when the files are known."""
    return have.manifest.size - have.missing_bytes if have.manifest is not None else 0


def _described(
    play: Play, node: Node, pinned: Wanted, hub: str, ended: threading.Event
) -> Manifest | None:
    """Wait until the pull has written what it fetches; None if it has ended before."""
    while not ended.is_set():
        have = models_on(play, [node], pinned, hub)[node.name]
        if have.manifest is not None:
            return have.manifest
        ended.wait(LOOK_S)
    return None


def _must_fit(
    nodes: Sequence[Node], found: Mapping[str, Have], seen: Preview, wanted: Wanted
) -> None:
    """Look at the disks of those that it is copied to, before the first byte is fetched.

    Raises:
        Refused: one is too small.
    """
    for node in nodes:
        have = found[node.name]
        there = _begun(have) if have.commit == seen.commit else 0
        missing = seen.size - there
        if missing + KEPT_FREE > have.free:
            raise Refused(
                f"{wanted.repository} needs {missing / 1e9:.1f} GB more in the hub cache, and "
                f"{KEPT_FREE / 1e9:.1f} GB that stay free; {have.free / 1e9:.1f} GB are free",
                where=node.name,
                hint="spark-cluster models prune shows what can be removed",
            )


def mark_used(play: Play, plan: ServePlan) -> None:
    """Note on the nodes that these revisions serve now, by which pruning chooses.

    A server that serves is not failed for it: what goes wrong here is only noted.
    """
    waiting = [
        (node, play.session(node).submit("store", what="used", **_revision(str(model.node_path))))
        for model in (plan.recipe.model, plan.recipe.drafter)
        if model is not None and model.in_hub_cache
        for node in plan.nodes
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
