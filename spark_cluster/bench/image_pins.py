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

from spark_cluster.bench.record import Setup
from spark_cluster.bench.run_folder import printable
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.images import DockerImage, answered, question
from spark_cluster.resources.image import without_tag
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

_REPO_DIGEST = re.compile(r"[^\s@]{1,255}@sha256:[0-9a-f]{64}")

REGISTRY = ("docker", "manifest", "inspect")
"""Asks the registry for an image; nothing is pulled."""

REGISTRY_S = 60.0
"""Seconds for that answer."""

LONGEST = 200
"""Characters of a registry's answer that are shown."""


Found = Mapping[str, DockerImage | None]
"""Node, the head first, to what is there under the name of an image; None where it is not there."""


@dataclass(frozen=True)
class ImagePins:
    """The images of the servers of a run that is repeated.

    Attributes:
        images: server to the digest that its image is pinned to.
        differences: what is not, or not yet, as it was recorded.
    """

    images: Mapping[str, str]
    differences: tuple[str, ...]


def choose(play: Play, setups: Sequence[Setup], recipes: Mapping[str, Recipe]) -> ImagePins:
    """Look on the nodes and at the registries which images can be those of the record.

    A server is not pinned where all of its nodes have the recorded image under the recipe's name.

    Args:
        recipes: server to its recipe, as recorded.
    """
    head_first = sorted(play.nodes, key=lambda node: not node.is_head)
    sessions = [play.session(node) for node in head_first]
    names = sorted({recipe.image.reference for recipe in recipes.values()} - {""})
    commands = {name: question(name) for name in names}
    waiting = [(one.node, one.submit("gather", commands=commands)) for one in sessions]
    here = [(node, pending.wait()["commands"]) for node, pending in waiting]
    refusals: dict[str, str] = {}
    images: dict[str, str] = {}
    lines: list[str] = []
    for setup in setups:
        recipe = recipes.get(setup.id)
        if recipe is None or not recipe.image.reference:
            continue
        used = here[: setup.tp * setup.replicas]
        found = {node: answered(told.get(recipe.image.reference)) for node, told in used}
        digest, why = candidate(setup, recipe), ""
        if digest and not all(image and is_recorded(setup, image) for image in found.values()):
            by_digest = f"{without_tag(recipe.image.ref)}@{digest}"
            if by_digest not in refusals:
                refusals[by_digest] = _refusal(play, sessions, by_digest)
            why = refusals[by_digest]
            if not why:
                images[setup.id] = digest
        lines += _uncertain(setup, recipe, found, is_pinned=setup.id in images, why=why)
    return ImagePins(images, tuple(dict.fromkeys(lines)))


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


def _uncertain(
    setup: Setup, recipe: Recipe, found: Found, *, is_pinned: bool, why: str
) -> Iterator[str]:
    """Yield what is not certain about the image of a server.

    Args:
        why: why it cannot be pulled by the recorded digest; empty where it can, or need not be.
    """
    image, recorded = recipe.image.reference, setup.image_repo_digest or setup.image_digest
    if recipe.image.archive is not None or recipe.image.build is not None:
        how = "has to be loaded or built"
    elif recipe.image.digest or is_pinned:
        how = "is pulled by its digest"
    else:
        reason = why or "the record has no digest of a registry"
        how = f"is pulled by its tag, which may have moved ({reason})"
    for node, here in found.items():
        if here is None:
            yield f"image {image} is not on {node}: it {how}"
        elif is_recorded(setup, here):
            continue
        elif is_pinned:
            yield f"image {image} is another one on {node}: the recorded one {how}"
        elif recorded and not recipe.image.digest:
            shown = here.digests[0] if "@" in recorded and here.digests else here.id
            reason = f" ({why})" if why else ""
            yield f"image {image}: {recorded} there, {shown} on {node}{reason}"


def _repository(reference: str) -> str:
    """Return the repository of a reference, without Docker Hub's own name."""
    name = without_tag(reference.partition("@")[0])
    return name.removeprefix("docker.io/").removeprefix("library/")
