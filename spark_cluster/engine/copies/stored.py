"""The models of a recipe in the hub cache of the nodes that serve it: what is there, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_cluster.engine.caches import root_of_all
from spark_cluster.engine.copies.images import Images, ask_images, read_images
from spark_cluster.engine.copies.state import Have, Wanted, all_models_on, hub_folder
from spark_cluster.node.store.layout import snapshot_folder

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.node.store.manifest import Manifest
    from spark_cluster.runner.play import Play
    from spark_cluster.topology import Node


@dataclass(frozen=True)
class Stored:
    """What nodes have of the models of a recipe.

    Attributes:
        hub: folder of the hub cache, the same on all of them.
        wanted: the model, and a drafter from the hub; only what is kept in the hub cache.
        on: node to what it has of each of them; the head first.
        images: node to the recipe's image; empty where it is not one that is copied.
    """

    hub: str
    wanted: tuple[Wanted, ...]
    on: Mapping[str, Sequence[Have]]
    images: Images = field(default_factory=dict)

    def of(self, wanted: Wanted) -> dict[str, Have]:
        """Return by node what it has of one of them."""
        place = self.wanted.index(wanted)
        return {node: haves[place] for node, haves in self.on.items()}

    def chosen(self, wanted: Wanted) -> tuple[str, Manifest] | None:
        """Return the first node that has it whole, with its files; None where none has.

        Where a branch has another commit on other nodes, this node's is the one that serves.
        """
        for node, have in self.of(wanted).items():
            if have.whole and have.manifest is not None:
                return node, have.manifest
        return None

    def lacking(self, wanted: Wanted, commit: str) -> list[str]:
        """Return the nodes that do not have this commit whole."""
        found = self.of(wanted).items()
        return [node for node, have in found if not have.whole or have.commit != commit]

    def folders(self) -> dict[str, str]:
        """Return repository to the folder of the revision that some node has whole."""
        found = {}
        for wanted in self.wanted:
            chosen = self.chosen(wanted)
            if chosen is not None:
                found[wanted.repository] = folder(self.hub, wanted, chosen[1].commit)
        return found

    def there(self, repository: str) -> dict[str, float]:
        """Return the GiB that each node has of one of them, infinite: all of it; empty for another
        model."""
        for wanted in self.wanted:
            if wanted.repository == repository:
                return {
                    name: math.inf if have.whole else have.present / 2**30
                    for name, have in self.of(wanted).items()
                }
        return {}


def folder(hub: str, wanted: Wanted, commit: str) -> str:
    """Return the folder of a revision on the nodes."""
    return snapshot_folder(hub, wanted.repository, commit)


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
    if not wanted:
        return Stored(hub, (), {})
    sessions = {node.name: play.session(node) for node in nodes}
    return Stored(hub, wanted, all_models_on(sessions, wanted, dict.fromkeys(sessions, hub)))
