"""Which models are on which node, and the bytes that are missing; asked in one turn.

`Stored` is what the nodes that serve have of a recipe: its models in their hub caches, its image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine.copies.images import Images, ask_images, read_images
from spark_cluster.engine.deployment import root_of_all
from spark_cluster.errors import Failed, Refused
from spark_cluster.node.store.manifest import HUB, Manifest, snapshot_folder
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

OnProgress = Callable[[str, str], None]
"""Gets a node and a line of progress."""


@dataclass(frozen=True)
class Wanted:
    """A model that is to be on nodes.

    Attributes:
        repository: ORG/NAME.
        revision: branch, tag or commit.
    """

    repository: str
    revision: str = "main"

    @classmethod
    def named(cls, text: str) -> Wanted:
        """Return what ORG/NAME or ORG/NAME@REVISION names."""
        repository, _, revision = text.partition("@")
        return cls(repository, revision or cls.revision)


@dataclass(frozen=True)
class Nodes:
    """The agents that are asked about their models.

    Args:
        sessions: node to agent.
        hubs: node to its hub cache.
    """

    sessions: Mapping[str, Session]
    hubs: Mapping[str, str]

    def ask(
        self, what: str, on_progress: OnProgress | None = None, **request: Any
    ) -> dict[str, dict[str, Any]]:
        """Ask all nodes at the same time; what they answer, by node.

        Raises:
            Failed: a node cannot do it.
            Unreachable: a node is lost.
        """
        pending = {
            name: session.submit("store", what=what, hub=self.hubs[name], **request)
            for name, session in self.sessions.items()
        }
        return {
            name: one.wait(_shown(name, on_progress) if on_progress else None)
            for name, one in pending.items()
        }

    def only(self, name: str) -> Nodes:
        """Return one of them."""
        return Nodes({name: self.sessions[name]}, self.hubs)


def _shown(node: str, on_progress: OnProgress) -> Callable[[dict[str, Any]], None]:
    def on_event(event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            on_progress(node, str(event.get("text", "")))

    return on_event


@dataclass(frozen=True)
class Have:
    """What a node has of a model.

    Attributes:
        commit: the revision's commit as the node knows it; None if it does not.
        manifest: the files that the revision consists of; None where they are not known.
        missing: paths of files that are not there, or not whole.
        missing_bytes: what is still to be moved, half files counted as there.
        links: paths whose link is missing or broken.
        problem: why what is there cannot be used; empty when it is whole or simply not there.
        elsewhere: hub cache of another tool on the node that has it whole; empty for none.
        adoptable: the files there.
        free: bytes that are free on the disk of the hub cache.
    """

    commit: str | None
    manifest: Manifest | None
    missing: Sequence[str]
    missing_bytes: int
    links: Sequence[str]
    problem: str
    elsewhere: str
    adoptable: Manifest | None
    free: int

    @property
    def complete(self) -> bool:
        """True if nothing is missing."""
        return self.manifest is not None and not self.missing and not self.links

    @property
    def present(self) -> int:
        """Bytes of it that the node has, those of half files too; 0 where its files are unknown."""
        return 0 if self.manifest is None else max(0, self.manifest.size - self.missing_bytes)

    @property
    def shortfall(self) -> str:
        """Why it is not whole, in words."""
        if self.problem:
            return self.problem
        if self.commit is None:
            return f"not there, but whole in {self.elsewhere}" if self.elsewhere else "not there"
        return f"{self.missing_bytes / 1e9:.1f} GB are missing"

    @classmethod
    def of(cls, found: Mapping[str, Any], free: int) -> Have:
        """Read the answer of a node."""
        names = ("commit", "missing", "missing_bytes", "links", "problem", "elsewhere")
        manifests = (found["manifest"], found.get("adoptable"))
        manifest, adoptable = (one and Manifest.from_document(one) for one in manifests)
        seen = {name: found[name] for name in names}
        return cls(**seen, manifest=manifest, adoptable=adoptable, free=free)


def hub_folder(root: str = CACHE_ROOT) -> str:
    """The hub cache on a node whose caches are below `root` (`engine.deployment.root_on`)."""
    return f"{root}/{HUB}"


def models_on(play: Play, nodes: Iterable[Node], wanted: Wanted, hub: str) -> dict[str, Have]:
    """Return by node what it has of a model; see `all_models_on`."""
    sessions = {node.name: play.session(node) for node in nodes}
    return all_models_on(Nodes(sessions, dict.fromkeys(sessions, hub)), [wanted])[wanted]


def all_models_on(nodes: Nodes, wanted: Sequence[Wanted]) -> dict[Wanted, dict[str, Have]]:
    """Return of each model by node what it has of it.

    Raises:
        Failed: a node cannot read it, or its answer is no answer.
        Unreachable: a node is lost.
    """
    asked = [{"repository": one.repository, "revision": one.revision} for one in wanted]
    answers = nodes.ask("state", wanted=asked)
    for name, answer in answers.items():
        if len(answer["models"]) != len(wanted):
            text = f"asked for {len(wanted)} models, it answered for {len(answer['models'])}"
            raise Failed(text, where=name)
    return {
        one: {
            name: Have.of(answer["models"][place], answer["free"])
            for name, answer in answers.items()
        }
        for place, one in enumerate(wanted)
    }


def complete_on(found: Mapping[str, Have]) -> tuple[str, Manifest] | None:
    """Return the first node that has a model whole, with its files; None where none has."""
    for node, have in found.items():
        if have.complete and have.manifest is not None:
            return node, have.manifest
    return None


def nowhere_complete(wanted: Wanted, found: Mapping[str, Have], hint: str) -> Refused:
    """Return the error that says what each node lacks of a model."""
    reasons = "; ".join(f"{node}: {have.shortfall}" for node, have in found.items())
    return Refused(
        f"no node has {wanted.repository}@{wanted.revision} whole ({reasons})", hint=hint
    )


@dataclass(frozen=True)
class Stored:
    """What nodes have of the models of a recipe.

    Attributes:
        hub: folder of the hub cache, the same on all of them.
        on: the model, and a drafter from the hub, as far as they are kept in the hub cache, to what
            each node has of them; the head first.
        images: node to the recipe's image; empty where it is not one that is copied.
    """

    hub: str
    on: Mapping[Wanted, Mapping[str, Have]]
    images: Images = field(default_factory=dict)

    def chosen(self, wanted: Wanted) -> tuple[str, Manifest] | None:
        """Return the first node that has it whole, with its files; None where none has.

        Where a branch has another commit on other nodes, this node's is the one that serves.
        """
        return complete_on(self.on[wanted])

    def missing(self, wanted: Wanted, commit: str) -> list[str]:
        """Return the nodes that do not have this commit whole."""
        found = self.on[wanted].items()
        return [node for node, have in found if not have.complete or have.commit != commit]

    def folders(self) -> dict[str, str]:
        """Return repository to the folder of the revision that some node has whole."""
        return {
            wanted.repository: snapshot_folder(self.hub, wanted.repository, chosen[1].commit)
            for wanted in self.on
            if (chosen := self.chosen(wanted)) is not None
        }

    @property
    def complete(self) -> bool:
        """True if each node has all of it."""
        found = {wanted: self.chosen(wanted) for wanted in self.on}
        return all(one and not self.missing(wanted, one[1].commit) for wanted, one in found.items())

    def gib_present(self, repository: str) -> dict[str, float]:
        """Return the GiB that each node has of one of them, infinite: all of it; empty for another
        model."""
        for wanted, found in self.on.items():
            if wanted.repository == repository:
                return {
                    name: math.inf if have.complete else have.present / 2**30
                    for name, have in found.items()
                }
        return {}


def wanted_by(recipe: Recipe) -> tuple[Wanted, ...]:
    """Return what of a recipe is kept in the hub cache."""
    model, drafter = recipe.model, recipe.drafter
    found = []
    if model.in_hub_cache:
        found.append(Wanted(model.name, model.revision))
    if drafter is not None and drafter.name and drafter.in_hub_cache:
        found.append(Wanted(drafter.name, drafter.revision))
    return tuple(dict.fromkeys(found))


def stored(play: Play, recipe: Recipe, nodes: Sequence[Node]) -> Stored:
    """Ask the nodes that will serve what they have; nothing is asked that is not wanted.

    Raises:
        Refused: the nodes have their caches in different places.
        SparkClusterError: a node cannot say what it has.
    """
    copied = recipe.venv is None and not recipe.image.archive
    asked = ask_images(play, nodes, recipe.image.ref) if copied else {}
    models = stored_models(play, recipe, nodes)  # in the same turn of the network
    return replace(models, images=read_images(asked))


def stored_models(play: Play, recipe: Recipe, nodes: Sequence[Node]) -> Stored:
    """Ask for the models only; see `stored`."""
    wanted = wanted_by(recipe)
    hub = hub_folder(root_of_all(play.inventory.nodes[node.name] for node in nodes))
    sessions = {node.name: play.session(node) for node in nodes} if wanted else {}
    return Stored(hub, all_models_on(Nodes(sessions, dict.fromkeys(sessions, hub)), wanted))
