"""The container image on all nodes that serve, the same on each of them.

One that a recipe pins is pulled by its digest on each node. What has no digest (an image that was
built, or a tag that may move), and what no registry gives, goes from the node that has it to the
others over the fabric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.image_build import Image
from spark_cluster.engine.copies.copy import copy_image, route
from spark_cluster.errors import Failed, Refused
from spark_cluster.resources.image import without_tag
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Pending
from spark_cluster.topology import Node

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
    """Ask nodes for the image of this name, all at once; raises as `read_images`."""
    return read_images(ask_images(play, nodes, ref))


def ask_images(play: Play, nodes: Sequence[Node], ref: str) -> dict[str, Pending]:
    """Ask nodes for the image of this name without waiting; `read_images` waits."""
    return {node.name: play.session(node).submit("image", what="state", ref=ref) for node in nodes}


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
    known = frozenset(one for one in digests if _ID.fullmatch(one))
    return ImageOnNode(str(found["id"]), known, int(found["size"]))


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
        offline: no registry is asked.

    Raises:
        Failed: they have different images, and none can be copied.
        SparkClusterError: it cannot be pulled, built or copied, with the reason.
    """
    now, role = play.known_now(nodes), play.role(ROLE, **given)
    whole = not (play.check or play.options.selection.partial)
    if len(now) == 1 or not whole or not _is_copied(play, now, given):
        play.apply(now, role)
        return
    first, ref = _first(now, before, given), str(given["ref"])
    others = [node for node in now if node.name != first.name]
    known = before.get(first.name)
    if known is not None and all(_same(before.get(node.name), known) for node in others):
        same = play.role(ROLE, ref=ref, digest=known.id)
        changes, _ = play.together(
            lambda: play.apply(first, role), lambda: play.apply(others, same)
        )
        if not changes.changed:
            return
    else:
        pulls = [] if offline or given.get("dockerfile") else _can_pull(play, others, given, before)
        play.apply([first, *pulls], role)
    found = images_on(play, now, ref)
    image = found[first.name]
    if image is None:
        raise Failed(f"{ref} is not there after its pull", where=first.name)
    lacking = [node for node in others if not image.is_same(found[node.name])]
    near = all(route(first, node).fabric for node in lacking) and _one_store(play, first, lacking)
    if lacking and not near:
        play.apply(lacking, role)
    elif lacking:
        for node in lacking:
            _copy(play, ref, image, first, node)
        play.apply(lacking, play.role(ROLE, ref=ref, digest=image.id))
    require_equal(ref, images_on(play, now, ref) if lacking else found)


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


def _can_pull(
    play: Play, nodes: Sequence[Node], given: Mapping[str, Any], before: Images
) -> list[Node]:
    """Return the nodes that lack the pinned image and can pull it; the user is told where a node
    cannot, since only a registry knows what a digest stands for."""
    digest = given.get("digest")
    pulls: list[Node] = []
    if digest is None:
        return pulls
    name = f"{without_tag(str(given['ref']))}@{digest}"
    argv = ["docker", "manifest", "inspect", name]
    found = {node.name: before.get(node.name) for node in nodes}
    lacking = [node for node in nodes if not (one := found[node.name]) or not one.has(digest)]
    asked = play.on_each(lacking, lambda n: play.session(n).run(argv, timeout=REGISTRY_S))
    for node in lacking:
        done = asked[node.name]
        why = done.stderr.strip().partition("\n")[0][:200] or "no answer"
        if done.status == 0:
            pulls.append(node)
        else:
            text = f"{name} is not verified against its registry ({why})"
            play.note(text, warning=True, node=node)
    return pulls


def _one_store(play: Play, first: Node, lacking: Sequence[Node]) -> bool:
    """Return whether the nodes' Dockers keep images in the same way: else ids differ."""
    nodes = [first, *lacking] if lacking else []
    asked = play.on_each(nodes, lambda node: play.session(node).request("image", what="store"))
    if len({bool(one["containerd"]) for one in asked.values()}) > 1:
        play.note(
            "the nodes' Dockers keep images in different stores (`docker info` names the "
            "driver), so each has this image by itself"
        )
        return False
    return True


def _copy(play: Play, ref: str, image: ImageOnNode, source: Node, target: Node) -> None:
    digests = sorted(image.digests)
    about = {"ref": ref, "id": image.id, "digests": digests, "size": image.size}
    play.note(f"{ref} on {copy_image(play, about, source, target)}")


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
