"""Images of a recorded run that is repeated: pinned to the digests of the record where possible.

A tag may have moved since the run. Where a node has another image of that name, or none, the
recipe's image is taken by the digest under which the recorded one can be pulled. A record may be
somebody else's: the name stays that of the recipe, so the image comes from its repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.bench.printable import printable
from spark_cluster.bench.record import Setup
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.images import DockerImage, answered, question
from spark_cluster.resources.image import without_tag

if TYPE_CHECKING:
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Session

_REPO_DIGEST = re.compile(r"[^\s@]{1,255}@sha256:[0-9a-f]{64}")

REGISTRY = ("docker", "manifest", "inspect")
"""Asks the registry for an image; nothing is pulled."""

REGISTRY_S = 60.0
"""Seconds for that answer."""

LONGEST = 200
"""Characters of a registry's answer that are shown."""


Found = Mapping[str, Mapping[str, DockerImage | None]]
"""Node, the head first, to reference of an image to what is there; None where it is not there."""


@dataclass(frozen=True)
class Pins:
    """The images of the servers of a run that is repeated.

    Attributes:
        images: server to the digest that its image is pinned to.
        differences: what is not, or not yet, as it was recorded.
    """

    images: Mapping[str, str]
    differences: tuple[str, ...]


def choose(play: Play, setups: Sequence[Setup], recipes: Mapping[str, Recipe]) -> Pins:
    """Look on the nodes and at the registries which images can be those of the record.

    Args:
        recipes: server to its recipe, as recorded.
    """
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    commands = questions(recipes)
    waiting = {node.name: play.session(node).submit("gather", commands=commands) for node in nodes}
    found: Found = {
        name: {image: answered(done) for image, done in pending.wait()["commands"].items()}
        for name, pending in waiting.items()
    }
    wanted = pins(setups, recipes, found)
    images = {
        server: f"{without_tag(recipes[server].image.ref)}@{digest}"
        for server, digest in wanted.items()
    }
    sessions = [play.session(node) for node in nodes]
    why = {image: _refusal(play, sessions, image) for image in sorted(set(images.values()))}
    refused = {server: why[image] for server, image in images.items() if why[image]}
    kept = {server: digest for server, digest in wanted.items() if server not in refused}
    lines = uncertain(setups, recipes, found, kept, refused)
    return Pins(kept, tuple(dict.fromkeys(lines)))


def _refusal(play: Play, sessions: Sequence[Session], image: str) -> str:
    """Return why a registry does not give an image to all nodes; empty where it does."""
    answers = play.together(*[partial(_asked, session, image) for session in sessions])
    return next(filter(None, answers), "")


def _asked(session: Session, image: str) -> str:
    try:
        done = session.run([*REGISTRY, image], timeout=REGISTRY_S)
    except SparkClusterError as error:
        return f"{session.node}: {error.message}"
    if done.status == 0:
        return ""
    why = " ".join(printable(done.stderr).split())[:LONGEST] or f"status {done.status}"
    return f"{session.node}: {why}"


def questions(recipes: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """Return the command that asks a node for each image, by its reference."""
    images = {recipe.image.reference for recipe in recipes.values()} - {""}
    return {image: question(image) for image in sorted(images)}


def of_repository(digests: Iterable[str], reference: str) -> str:
    """Return the first of `NAME@sha256:...` whose repository is that of a reference, or ""."""
    wanted = _repository(reference)
    return next((text for text in digests if _repository(text) == wanted), "")


def candidate(setup: Setup, recipe: Recipe) -> str:
    """Return the digest by which a server's recorded image can be pulled; empty without one.

    There is none for an image that was loaded or built, and none of another repository than the
    recipe's.
    """
    image = recipe.image
    if not image.ref or image.digest or image.archive is not None or image.build is not None:
        return ""
    recorded = (setup.image_repo_digest, setup.image_digest)
    known = (text for text in recorded if _REPO_DIGEST.fullmatch(text))
    return of_repository(known, image.ref).partition("@")[2]


def pins(setups: Sequence[Setup], recipes: Mapping[str, Recipe], found: Found) -> dict[str, str]:
    """Return server to the digest that its image is pinned to.

    A server is left out where all nodes have the recorded image under the name of the recipe
    already.
    """
    wanted = {}
    for setup in setups:
        recipe = recipes.get(setup.id)
        digest = candidate(setup, recipe) if recipe is not None else ""
        if recipe is None or not digest:
            continue
        images = [on_node.get(recipe.image.reference) for on_node in _used(setup, found).values()]
        if not all(image is not None and is_recorded(setup, image) for image in images):
            wanted[setup.id] = digest
    return wanted


def _used(setup: Setup, found: Found) -> Found:
    """Return the nodes that a server needs: those of the first replicas, the head first."""
    return dict(list(found.items())[: setup.tp * setup.replicas])


def is_recorded(setup: Setup, image: DockerImage) -> bool:
    """Return True where an image on a node is the one of a recorded server."""
    digests = {text.partition("@")[2] for text in (*image.digests, f"@{image.id}")}
    recorded = {text.rpartition("@")[2] for text in (setup.image_repo_digest, setup.image_digest)}
    return bool((recorded - {""}) & digests)


def pinned(recipe: Recipe, digest: str) -> Recipe:
    """Return a recipe with its image by a digest; as it is where there is none."""
    if not digest:
        return recipe
    image = recipe.image.model_copy(update={"digest": digest})
    return recipe.model_copy(update={"image": image})


def uncertain(
    setups: Sequence[Setup],
    recipes: Mapping[str, Recipe],
    found: Found,
    pinned_to: Mapping[str, str],
    refused: Mapping[str, str],
) -> Iterator[str]:
    """Yield what is not certain about the images.

    Args:
        recipes: server to its recipe as recorded.
        pinned_to: as `pins` returned it, without what cannot be pulled.
        refused: server to why its image cannot be pulled by the recorded digest.
    """
    for setup in setups:
        recipe = recipes.get(setup.id)
        image = recipe.image.reference if recipe is not None else ""
        if recipe is None or not image:
            continue
        how = _how(setup, recipe, pinned_to, refused)
        for node, images in _used(setup, found).items():
            here = images.get(image)
            if here is None:
                yield f"image {image} is not on {node}: it {how}"
            elif setup.id in pinned_to and not is_recorded(setup, here):
                yield f"image {image} is another one on {node}: the recorded one {how}"
            elif not recipe.image.digest and not is_recorded(setup, here):
                yield from _other(setup, image, node, here, refused.get(setup.id, ""))


def _how(
    setup: Setup, recipe: Recipe, pinned_to: Mapping[str, str], refused: Mapping[str, str]
) -> str:
    """Return how an image comes to a node that does not have it."""
    if recipe.image.archive is not None or recipe.image.build is not None:
        return "has to be loaded or built"
    if recipe.image.digest or setup.id in pinned_to:
        return "is pulled by its digest"
    why = refused.get(setup.id) or "the record has no digest of a registry"
    return f"is pulled by its tag, which may have moved ({why})"


def _other(setup: Setup, image: str, node: str, here: DockerImage, why: str) -> Iterator[str]:
    recorded = setup.image_repo_digest or setup.image_digest
    if recorded:
        shown = here.digests[0] if "@" in recorded and here.digests else here.id
        reason = f" ({why})" if why else ""
        yield f"image {image}: {recorded} there, {shown} on {node}{reason}"


def _repository(reference: str) -> str:
    """Return the repository of a reference, without Docker Hub's own name."""
    name = without_tag(reference.partition("@")[0])
    return name.removeprefix("docker.io/").removeprefix("library/")
