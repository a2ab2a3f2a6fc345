"""Images as `docker image inspect` tells them: the one parser of it, on the laptop and on nodes.

What comes is foreign input: a field of another type than Docker's counts as not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.node.replies import at, listed, mapping_of, text_of, texts_of


@dataclass(frozen=True)
class DockerImage:
    """An image as Docker on one node knows it.

    Attributes:
        id: `sha256:...`.
        names: `NAME:TAG`.
        digests: `NAME@sha256:...` under which it was pulled; none of one that was loaded or built.
        size: bytes, not compressed.
        created: when it was made, as Docker writes it.
        os, architecture, variant: of the machines that it is made for.
    """

    id: str
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    size: int = 0
    created: str = ""
    os: str = "linux"
    architecture: str = "unknown"
    variant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def question(reference: str) -> list[str]:
    """Return the command that tells of an image; `answered` reads what it prints."""
    return ["docker", "image", "inspect", reference]


def answered(done: Mapping[str, Any] | None) -> DockerImage | None:
    """Return the image of an answer of the agent's `gather`; None where it is not there."""
    found = listed(done["stdout"]) if done is not None and done["status"] == 0 else None
    return next(map(_image, found or []), None)


def parse_images(printed: str) -> tuple[DockerImage, ...]:
    """Read `docker image inspect NAME...`.

    Raises:
        ValueError: it is no JSON list.
    """
    found = listed(printed)
    if found is None:
        raise ValueError("docker image inspect printed no list of objects")
    return tuple(map(_image, found))


def _image(one: Any) -> DockerImage:
    size = at(one, "Size")
    return DockerImage(
        id=text_of(at(one, "Id")),
        names=texts_of(at(one, "RepoTags")),
        digests=texts_of(at(one, "RepoDigests")),
        size=size if isinstance(size, int) else 0,
        created=text_of(at(one, "Created")),
        os=text_of(at(one, "Os")) or "linux",
        architecture=text_of(at(one, "Architecture")) or "unknown",
        variant=text_of(at(one, "Variant")),
        labels=mapping_of(at(one, "Config", "Labels")),
    )
