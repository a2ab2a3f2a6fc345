"""The container image on all nodes that serve: had by one of them, and copied to the others.

The copy is that of models: over the fabric, several streams, resumed, checked by hashes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.engine.copies.copy import copy, route
from spark_cluster.engine.copies.in_run import current, showing
from spark_cluster.errors import Failed, Refused
from spark_cluster.node import paths
from spark_cluster.node.sizes import gigabytes
from spark_cluster.node.store.image_blobs import without_layers
from spark_cluster.node.store.manifest import BadManifest, Manifest

if TYPE_CHECKING:
    from spark_cluster.config.recipe_schema import Image
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Pending
    from spark_cluster.topology import Node

ROLE = "images"
HUB = paths.IMAGES
"""Folder on the nodes for an image while it is copied."""
REGISTRY_S = 60.0
"""Seconds for asking a registry what a digest stands for."""
LIMIT_S = 4 * 3600.0
"""Seconds for writing an image to a disk, or for giving it to Docker."""

_ID = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageOnNode:
    """An image as one node's Docker knows it.

    Attributes:
        id: `sha256:...`.
        digests: those that registries gave it, without the names of repositories.
        layers: `sha256:...` of each as a plain tar file, the lowest first.
        size: bytes, not compressed.
        left: files of its copy are on the node still.
    """

    id: str
    digests: frozenset[str]
    layers: tuple[str, ...]
    size: int
    left: bool = False

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
    """Ask nodes for the image of this name, all at once; raises as `read_images`."""
    return read_images(ask_images(play, nodes, ref))


def ask_images(play: Play, nodes: Sequence[Node], ref: str) -> dict[str, Pending]:
    """Ask nodes for the image of this name without waiting; `read_images` waits."""
    return {
        node.name: play.session(node).submit(
            "image", what="state", ref=ref, hub=HUB, repository=repository_of(ref)
        )
        for node in nodes
    }


def read_images(asked: Mapping[str, Pending]) -> dict[str, ImageOnNode | None]:
    """Wait for what `ask_images` asked.

    Raises:
        Failed: an answer cannot be used.
        Unreachable: a node is lost.
    """
    return {name: _read(name, pending.wait()["image"]) for name, pending in asked.items()}


def _read(node: str, found: Any) -> ImageOnNode | None:
    if found is None:
        return None
    if not isinstance(found, dict) or not _ID.fullmatch(str(found.get("id"))):
        raise Failed("docker image inspect gave no id", where=node)
    digests = (str(one).rpartition("@")[2] for one in found["digests"])
    layers = tuple(str(layer) for layer in found["layers"])
    known = frozenset(one for one in digests if _ID.fullmatch(one))
    size, left = int(found["size"]), found.get("left") is True
    return ImageOnNode(str(found["id"]), known, layers, size, left)


def repository_of(ref: str) -> str:
    """Return the name by which an image is copied."""
    return f"image/{hashlib.sha256(ref.encode()).hexdigest()[:16]}"


def bring(
    play: Play,
    nodes: Sequence[Node],
    given: Mapping[str, Any],
    before: Images,
    *,
    offline: bool = False,
) -> None:
    """Have the image of a recipe on all nodes that serve, the same on all of them.

    Args:
        nodes: the head first.
        given: settings of the role `images`.
        before: what the nodes had when the run began.
        offline: the registry is not asked whether a copy is what the recipe pins.

    Raises:
        Failed: they have different images, and none can be copied.
        SparkClusterError: it cannot be pulled, built or copied, with the reason.
    """
    now = current(play, nodes)
    whole = not (play.check or play.options.selection.partial)
    if len(now) == 1 or not whole or not _is_copied(play, now, given):
        play.apply(now, play.role(ROLE, **given))
        return
    first = _first(now, before, given)
    others = [node for node in now if node.name != first.name]
    known, wanted = before.get(first.name), given["ref"]
    if known is not None and all(_same(before.get(node.name), known) for node in others):
        changes, _ = play.together(
            lambda: play.apply(first, play.role(ROLE, **given)),
            lambda: play.apply(others, play.role(ROLE, ref=wanted, digest=known.id)),
        )
        if not changes.changed:
            clean(play, now, wanted, before)
            return
    else:
        play.apply(first, play.role(ROLE, **given))
    _Copy(play, given, first, others, offline).run()


def clean(play: Play, nodes: Sequence[Node], ref: str, found: Images) -> None:
    """Remove the files of a copy that is over, where a run has left them."""
    left = [node for node in nodes if (one := found.get(node.name)) is not None and one.left]
    asked: dict[str, Any] = {"what": "clean", "hub": HUB, "repository": repository_of(ref)}
    play.on_each(left, lambda node: play.session(node).request("image", **asked, timeout=LIMIT_S))


def _same(one: ImageOnNode | None, known: ImageOnNode) -> bool:
    """Return whether they have one id, which depends on Docker's store, too."""
    return one is not None and one.id == known.id


def _is_copied(play: Play, nodes: Sequence[Node], given: Mapping[str, Any]) -> bool:
    """Return whether one node has it and the others get it: not what each loads from an archive,
    and not what has no tag, by which copies are known."""
    if given.get("archive") or given.get("base_archive") or "@" in given["ref"]:
        return False
    settings = [play.inventory.nodes[node.name].settings_for(ROLE).data for node in nodes]
    return all(given.get("copies", True) for given in settings)


def _first(nodes: Sequence[Node], before: Images, given: Mapping[str, Any]) -> Node:
    """Return the node that has the image, or is to have it first: the head, unless it lacks what
    another one has."""
    for node in nodes:
        image = before.get(node.name)
        if image is not None and image.has(given.get("digest")) and not given.get("dockerfile"):
            return node
    return nodes[0]


def must_be_there(image: Image, before: Images) -> None:
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


@dataclass(frozen=True)
class _Copy:
    """The copy of an image from one node to those that lack it."""

    play: Play
    given: Mapping[str, Any]
    first: Node
    others: Sequence[Node]
    offline: bool

    def run(self) -> None:
        """Copy it, and see that all have the same."""
        nodes, ref = [self.first, *self.others], str(self.given["ref"])
        found = images_on(self.play, nodes, ref)
        image = found[self.first.name]
        if image is None:
            raise Failed(f"{ref} is not there after its pull", where=self.first.name)
        lacking = [node for node in self.others if not image.is_same(found[node.name])]
        if lacking and self._fabric(lacking) and self._copy(image, lacking):
            self.play.apply(lacking, self.play.role(ROLE, ref=ref, digest=image.id))
            lacking = []
        if lacking:
            self.play.apply(lacking, self.play.role(ROLE, **self.given))
        found = images_on(self.play, nodes, ref)
        require_equal(ref, found)
        clean(self.play, nodes, ref, found)

    def _fabric(self, lacking: Sequence[Node]) -> bool:
        """Return whether all of them are reached over the fabric: over the management network a
        registry is as near as the other node."""
        return all(route(self.first, node).fabric for node in lacking)

    def _copy(self, image: ImageOnNode, lacking: Sequence[Node]) -> bool:
        """Copy it; return False where the nodes keep images in different ways, by other ids."""
        ref, nodes = str(self.given["ref"]), [self.first, *lacking]
        asked = self.play.on_each(nodes, lambda node: self._common(node, image))
        if len({bool(one["containerd"]) for one in asked.values()}) > 1:
            self.play.note(
                "the nodes' Dockers keep images in different stores (`docker info` names the "
                "driver), so each has this image by itself"
            )
            return False
        if self.given.get("digest"):
            for node in lacking:
                self._must_be_pinned(node, image)
        manifest, layers = self._exported(image)
        count = min(int(asked[node.name]["count"]) for node in lacking)
        if count and len(layers) == len(image.layers):
            manifest = without_layers(manifest, layers, count)
        for one in copy(self.play, manifest, self.first, lacking, hub=HUB):
            if one.sender:
                less = f"; {count} of {len(layers)} layers were there" if count else ""
                self.play.note(f"{ref} on {one}{less}")
        self.play.on_each(lacking, lambda node: self._load(node, image, manifest))
        return True

    def _must_be_pinned(self, node: Node, image: ImageOnNode) -> None:
        """Ask the registry, through the node that gets the image, what the digest stands for.

        Raises:
            Failed: another image than the one that the first node would send.
        """
        name = f"{without_tag(str(self.given['ref']))}@{self.given['digest']}"
        told, why = set[str](), "--offline"
        if not self.offline:
            argv = ["docker", "manifest", "inspect", "--verbose", name]
            done = self.play.session(node).run(argv, timeout=REGISTRY_S)
            told, why = ids_of(done.stdout), done.stderr.strip().partition("\n")[0][:200]
        if not told:
            text = f"{name} is not verified against its registry ({why or 'no answer'})"
            self.play.note(text, warning=True, node=node)
        elif image.id not in {*told, self.given["digest"]}:
            raise Failed(
                f"what it has as {name} is another image than its registry's: {image.id[:19]}",
                where=self.first.name,
                hint=f"someone changed it there; `docker image rm {self.given['ref']}` on "
                f"{self.first.name}, and the next run pulls it",
            )

    def _common(self, node: Node, image: ImageOnNode) -> dict[str, Any]:
        return self.play.session(node).request(
            "image", what="common", layers=list(image.layers), timeout=LIMIT_S
        )

    def _exported(self, image: ImageOnNode) -> tuple[Manifest, list[str]]:
        """Have the node write the image into files; return them, and the paths of the layers."""
        ref = str(self.given["ref"])
        found = self.play.session(self.first).request(
            "image",
            showing(self.play, self.first, f"{ref} ({gigabytes(image.size)}) out of Docker"),
            what="export",
            hub=HUB,
            repository=repository_of(ref),
            commit=image.id.removeprefix("sha256:")[:40],
            ref=ref,
            size=image.size,
            timeout=LIMIT_S,
        )
        try:
            return Manifest.from_document(found["manifest"]), [str(one) for one in found["layers"]]
        except (BadManifest, LookupError, TypeError) as error:
            where = self.first.name
            raise Failed(f"what it wrote of {ref} cannot be used: {error}", where=where) from error

    def _load(self, node: Node, image: ImageOnNode, manifest: Manifest) -> None:
        ref = str(self.given["ref"])
        self.play.session(node).request(
            "image",
            showing(self.play, node, f"{ref} into Docker"),
            what="load",
            hub=HUB,
            ref=ref,
            manifest=manifest.document(),
            id=image.id,
            digests=sorted(image.digests),
            timeout=LIMIT_S,
        )


def without_tag(ref: str) -> str:
    """Return the name of an image without its tag: next to a digest `docker manifest inspect` asks
    for the tag, which may mean another image by now."""
    place, _, name = ref.rpartition("/")
    return "/".join(filter(None, (place, name.partition(":")[0])))


def ids_of(printed: str) -> set[str]:
    """Return the ids that an image can have by what `docker manifest inspect --verbose` printed:
    of its configuration (Docker's own store) or of its manifest (containerd's), for each platform.
    """
    try:
        found = json.loads(printed)
    except (ValueError, RecursionError):
        return set()
    ids = set[str]()
    for one in found if isinstance(found, list) else [found]:
        about = _object(one)
        manifest = about.get("SchemaV2Manifest") or about.get("OCIManifest")
        for place in (about.get("Descriptor"), _object(manifest).get("config")):
            ids.add(str(_object(place).get("digest")))
    return {one for one in ids if _ID.fullmatch(one)}


def _object(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


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
