"""The container image on all nodes that serve, the same on each of them.

One that a recipe pins is pulled by its digest on each node. What has no digest (an image that was
built, or a tag that may move), and what no registry gives, goes from the node that has it to the
others over the fabric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_cluster.config.image_build import RecipeImage, bases
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine.node_copies import copy_image, route
from spark_cluster.errors import Failed, Refused
from spark_cluster.node.replies import made_of
from spark_cluster.resources.image import without_tag
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session, ask_all, ask_each

ROLE = "images"
REGISTRY_S = 60.0
"""Seconds for asking a registry whether it has a digest."""

_ID = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageOnNode:
    """An image as one node's Docker knows it.

    Attributes:
        id: `sha256:...`.
        digests: those that registries gave it, without the names of repositories.
        size: bytes, not compressed.
    """

    id: str
    digests: frozenset[str]
    size: int

    def is_same(self, other: ImageOnNode | None) -> bool:
        """Return whether both are one image: by id, or by a digest that both have."""
        if other is None:
            return False
        return self.id == other.id or bool(self.digests & other.digests)

    def has(self, digest: str | None) -> bool:
        """Return whether it is the one that a recipe pins; any is where none is pinned."""
        return digest is None or digest in {self.id, *self.digests}


Images = Mapping[str, ImageOnNode | None]
"""Node to its image; None where there is none, or no Docker."""


def images_on(play: Play, nodes: Sequence[Node], ref: str) -> dict[str, ImageOnNode | None]:
    """Ask nodes for the image of this name, all at once.

    Raises:
        Failed: an answer cannot be used.
        Unreachable: a node is lost.
    """
    answers = ask_all(play.sessions_of(nodes), "image", what="state", ref=ref)
    return {name: _read(name, answer["image"]) for name, answer in answers.items()}


def _read(node: str, found: Any) -> ImageOnNode | None:
    if found is None:
        return None
    if not isinstance(found, dict) or not _ID.fullmatch(str(found.get("id"))):
        raise Failed("docker image inspect gave no id", where=node)
    digests = (str(one).rpartition("@")[2] for one in found["digests"])
    known = frozenset(one for one in digests if _ID.fullmatch(one))
    return ImageOnNode(str(found["id"]), known, int(found["size"]))


@dataclass(frozen=True)
class WantedImage:
    """The image of a recipe, which is to be on all nodes that serve, the same on all of them.

    Args:
        nodes: the head first.
        given: settings of the role `images`.
        before: what the nodes had when the run began.
    """

    play: Play
    nodes: Sequence[Node]
    given: Mapping[str, Any]
    before: Images

    @property
    def ref(self) -> str:
        """Its name."""
        return str(self.given["ref"])

    def bring(self) -> None:
        """Have it on all nodes.

        Raises:
            Failed: they have different images, and none can be copied.
            SparkClusterError: it cannot be pulled, built or copied, with the reason.
        """
        play, role = self.play, self.play.role(ROLE, **self.given)
        complete = not (play.check or play.options.selection.partial)
        if len(self.nodes) == 1 or not complete or not self._is_copied():
            play.apply(self.nodes, role)
            return
        first = self._first()
        others = [node for node in self.nodes if node.name != first.name]
        known = self.before.get(first.name)
        if known is not None and all(self._is_known(n, known) for n in others):
            same = play.role(ROLE, ref=self.ref, digest=known.id)
            changes, _ = play.together(
                lambda: play.apply(first, role), lambda: play.apply(others, same)
            )
            if not changes.changed:
                return
        else:
            play.apply([first, *self._pulls(others)], role)
        self._equal(first, others)

    def _is_known(self, node: Node, known: ImageOnNode) -> bool:
        """Return whether a node has an image by its id, which depends on Docker's store, too; and
        by what it knows itself as the pinned one, as another node's word for that may be a lie."""
        one = self.before.get(node.name)
        return one is not None and one.id == known.id and one.has(self.given.get("digest"))

    def _is_copied(self) -> bool:
        """Return whether one node has it and the others get it: not what each loads from an
        archive, and not what has no tag, by which copies are known."""
        if self.given.get("archive") or self.given.get("base_archive") or "@" in self.ref:
            return False
        inventory = self.play.inventory
        settings = [inventory.nodes[node.name].settings_for(ROLE).data for node in self.nodes]
        return all(given.get("copies", True) for given in settings)

    def _first(self) -> Node:
        """Return the node that has the image, or is to have it first: the head, unless it lacks
        what another one has."""
        built = self.given.get("dockerfile")
        for node in self.nodes:
            image = self.before.get(node.name)
            if image is not None and image.has(self.given.get("digest")) and not built:
                return node
        return self.nodes[0]

    def _pulls(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that lack the pinned image and can pull it; the user is told where a
        node cannot, since only a registry knows what a digest stands for."""
        digest = self.given.get("digest")
        pulls: list[Node] = []
        if digest is None or self.play.options.offline or self.given.get("dockerfile"):
            return pulls
        name = f"{without_tag(self.ref)}@{digest}"
        found = {node.name: self.before.get(node.name) for node in nodes}
        missing = [node for node in nodes if not (one := found[node.name]) or not one.has(digest)]
        session = self.play.session
        asked = self.play.on_each(missing, lambda n: why_not_in_registry(session(n), name))
        for node in missing:
            why = asked[node.name]
            if not why:
                pulls.append(node)
            else:
                text = f"{name} is not verified against its registry ({why})"
                self.play.note(text, warning=True, node=node)
        return pulls

    def _equal(self, first: Node, others: Sequence[Node]) -> None:
        """Have on the others what the first node has: a copy of it, or each by itself.

        Raises:
            Failed: they have different images after it.
        """
        play, ref = self.play, self.ref
        found = images_on(play, self.nodes, ref)
        image = found[first.name]
        if image is None:
            raise Failed(f"{ref} is not there after its pull", where=first.name)
        missing = [node for node in others if not image.is_same(found[node.name])]
        if not missing:
            require_equal(ref, found)
            return
        if all(route(first, node).fabric for node in missing) and self._one_store(first, missing):
            # What is remembered of it later: its digests are the sender's word, and the pinned one
            # was asked for at a registry before.
            pinned = {self.given.get("digest")} & image.digests
            about = {"ref": ref, "id": image.id, "digests": sorted(filter(None, pinned))}
            for node in missing:
                done = copy_image(play, {**about, "size": image.size}, first, node)
                play.note(f"{ref} on {done}")
            play.apply(missing, play.role(ROLE, ref=ref, digest=image.id))
        else:
            play.apply(missing, play.role(ROLE, **self.given))
        require_equal(ref, images_on(play, self.nodes, ref))

    def _one_store(self, first: Node, others: Sequence[Node]) -> bool:
        """Return whether the nodes' Dockers keep images in the same way: else ids differ."""
        session = self.play.session
        asked = self.play.on_each(
            [first, *others], lambda node: session(node).request("image", what="store")
        )
        if len({bool(one["containerd"]) for one in asked.values()}) > 1:
            self.play.note(
                "the nodes' Dockers keep images in different stores (`docker info` names the "
                "driver), so each has this image by itself"
            )
            return False
        return True


def why_not_in_registry(session: Session, image: str) -> str:
    """Return why a registry does not give an image to a node; empty where it does.

    Only its manifest is asked for: nothing is pulled.
    """
    done = session.run(["docker", "manifest", "inspect", image], timeout=REGISTRY_S)
    why = done.stderr.strip().partition("\n")[0][:200] or "no answer"
    return why if done.status else ""


def must_be_present(image: RecipeImage, before: Images) -> None:
    """Refuse to go on without a registry where no node has the image.

    Raises:
        Refused: with its name.
    """
    if image.archive or image.build:
        return
    if not any(one is not None and one.has(image.digest) for one in before.values()):
        raise Refused(
            f"no node has the image {image.ref}",
            hint="leave --offline out to pull it from its registry",
        )


def require_equal(ref: str, images: Images) -> None:
    """Refuse a launch on nodes whose images differ.

    Raises:
        Failed: a node lacks the image, or has another one than the first node.
    """
    absent = [node for node, image in images.items() if image is None]
    if absent:
        raise Failed(
            f"{ref} is not on {', '.join(absent)}", hint="run `spark-cluster up` again to get it"
        )
    present = {node: image for node, image in images.items() if image is not None}
    one = next(iter(present.values()), None)
    if one is None or all(one.is_same(image) for image in present.values()):
        return
    listed = ", ".join(f"{node}: {image.id[:19]}" for node, image in present.items())
    raise Failed(
        f"{ref} is not the same image on all nodes ({listed})",
        hint="set image.digest in the recipe, so that every node gets the same one",
    )


# Looking after container images on the nodes: what is there, needed and used; pruning.

UNNAMED = "<none>"


@dataclass(frozen=True)
class StoredImage:
    """An image of a node's Docker.

    Attributes:
        id: `sha256:...`.
        names: with tags; empty for one that has lost its name to another.
        digests: under which registries have it, NAME@sha256:...
        size: bytes, layers that other images have, too, included.
        created: when it was built, as Docker prints it.
        used_by: containers, the running ones first.
        recipes: recipes that need it, or whose build stands on it.
    """

    id: str
    names: list[str]
    digests: list[str]
    size: int
    created: str
    used_by: list[str]
    recipes: list[str]

    @property
    def shown(self) -> str:
        """Its first name, or the beginning of its id."""
        return self.names[0] if self.names else self.id[7:19]

    @property
    def short_digest(self) -> str:
        """The beginning of its digest; of an image that no registry has, of its id."""
        return (self.digests[0].partition("@")[2] if self.digests else self.id)[7:19]

    @property
    def remarks(self) -> str:
        """What is to be said of it: who uses it, which recipes need it."""
        used = f"in use by {', '.join(self.used_by)}" if self.used_by else ""
        return "; ".join(part for part in (used, *self.recipes) if part)


@dataclass(frozen=True)
class StoredImages:
    """The images of a node."""

    node: str
    images: list[StoredImage]


@dataclass(frozen=True)
class KeptImage:
    """An image that pruning leaves, and why."""

    name: str
    reason: str

    @property
    def shown(self) -> str:
        """Its name."""
        return self.name


@dataclass(frozen=True)
class PrunedImages:
    """What pruning removes from a node, or would remove.

    Attributes:
        freed: bytes at most: layers that a kept image has, too, stay.
        refused: what Docker would not remove, with its words.
    """

    node: str
    removed: list[StoredImage]
    kept: list[KeptImage]
    freed: int
    refused: list[KeptImage]


def needs_of(recipes: Iterable[Recipe]) -> dict[str, list[str]]:
    """Return name of an image to the recipes that need it, bases of builds among them."""
    found: dict[str, list[str]] = {}
    for recipe in recipes:
        image = recipe.image
        names = [image.ref, *(bases(image.build.text) if image.build else [])]
        for name in names:
            if name:
                found.setdefault(_tagged(name), []).append(recipe.name)
    return found


def _tagged(ref: str) -> str:
    """Return a name with its tag, as Docker lists it; without a digest."""
    name = ref.partition("@")[0]
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def stored_images(
    sessions: Mapping[str, Session], needs: Mapping[str, Sequence[str]]
) -> list[StoredImages]:
    """Return the images of each node, the newest first.

    Raises:
        Failed: a node has no Docker, or its answer is no answer.
        Unreachable: a node is lost.
    """
    found = []
    for node, answer in ask_all(sessions, "image", what="list").items():
        images = [_image(one, needs) for one in answer["images"]]
        newest = sorted(images, key=lambda image: image.created, reverse=True)
        found.append(StoredImages(node, newest))
    return found


def _image(found: Mapping[str, Any], needs: Mapping[str, Sequence[str]]) -> StoredImage:
    names = [name for name in found["names"] if UNNAMED not in name]
    recipes = sorted({recipe for name in names for recipe in needs.get(name, ())})
    return made_of(StoredImage, {**found, "names": names, "recipes": recipes})


def planned(found: StoredImages, only: Sequence[str] = (), free: int = 0) -> PrunedImages:
    """Return what pruning would remove, the oldest first.

    Args:
        only: names of images; empty for all.
        free: bytes at which it stops; 0 for all that may go.
    """
    removed: list[StoredImage] = []
    kept: list[KeptImage] = []
    for image in reversed(found.images):
        reason = _reason(image, only)
        if not reason and free and sum(one.size for one in removed) >= free:
            reason = "enough is freed without it"
        if reason:
            kept.append(KeptImage(image.shown, reason))
        else:
            removed.append(image)
    return PrunedImages(found.node, removed, kept, sum(image.size for image in removed), [])


def _reason(image: StoredImage, only: Sequence[str]) -> str:
    """Return why an image stays; empty if it may go."""
    if image.used_by:
        return f"the container {image.used_by[0]} uses it"
    if image.recipes:
        return f"recipe {', '.join(image.recipes)} needs it"
    if only and not is_named(image, only):
        return "not named"
    return ""


def is_named(image: StoredImage, names: Sequence[str]) -> bool:
    """Return whether one of the names is the image's; without a tag it means `latest`."""
    return bool({*image.names, image.id, image.id[7:19]} & {*names, *map(_tagged, names)})


def remove(sessions: Mapping[str, Session], found: Sequence[PrunedImages]) -> list[PrunedImages]:
    """Remove what was planned; return what was removed, and what Docker has refused.

    Raises:
        Failed: a node's Docker does not answer.
        Unreachable: a node is lost.
    """
    asked = {
        one.node: {
            "what": "remove",
            "images": [{"id": image.id, "names": image.names} for image in one.removed],
            "timeout": 3600.0,
        }
        for one in found
    }
    answers = ask_each(sessions, "image", asked)
    return [_removed(one, answers[one.node]["kept"]) for one in found]


def _removed(planned: PrunedImages, kept: Mapping[str, str]) -> PrunedImages:
    gone = [image for image in planned.removed if image.id not in kept]
    left = [KeptImage(i.shown, str(kept[i.id])) for i in planned.removed if i.id in kept]
    freed = sum(image.size for image in gone)
    return replace(planned, removed=gone, freed=freed, refused=left)
