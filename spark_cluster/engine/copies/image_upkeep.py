"""Looking after container images on the nodes: what is there, needed and used; pruning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_cluster.config.image_build import bases
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import Failed
from spark_cluster.runner.session import Session

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
    waiting = {name: session.submit("image", what="list") for name, session in sessions.items()}
    found = []
    for node, pending in waiting.items():
        try:
            images = [_image(one, needs) for one in pending.wait()["images"]]
        except (LookupError, TypeError, ValueError) as error:
            raise Failed(f"its list of images cannot be read: {error!r}", where=node) from error
        newest = sorted(images, key=lambda image: image.created, reverse=True)
        found.append(StoredImages(node, newest))
    return found


def _image(found: Mapping[str, Any], needs: Mapping[str, Sequence[str]]) -> StoredImage:
    names = [str(name) for name in found["names"] if UNNAMED not in str(name)]
    recipes = sorted({recipe for name in names for recipe in needs.get(name, ())})
    return StoredImage(
        str(found["id"]),
        names,
        [str(one) for one in found["digests"]],
        int(found["size"]),
        str(found["created"]),
        [str(one) for one in found["used_by"]],
        recipes,
    )


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
        return f"the container {image.used_by[0]} stands on it"
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
    waiting = {
        one.node: sessions[one.node].submit(
            "image",
            what="remove",
            images=[{"id": image.id, "names": image.names} for image in one.removed],
            timeout=3600.0,
        )
        for one in found
    }
    return [_removed(one, waiting[one.node].wait()["kept"]) for one in found]


def _removed(planned: PrunedImages, kept: Mapping[str, str]) -> PrunedImages:
    gone = [image for image in planned.removed if image.id not in kept]
    left = [KeptImage(i.shown, str(kept[i.id])) for i in planned.removed if i.id in kept]
    freed = sum(image.size for image in gone)
    return replace(planned, removed=gone, freed=freed, refused=left)
