"""Images as `docker image inspect` tells them: the one parser of it, on the laptop and on nodes.

What comes is foreign input: a field of another type than Docker's counts as not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.node import durable, paths
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


# Registry digests of images that came by copy: `docker load` does not know where an image was
# pulled, so a recipe's pinned digest would never be found again on the node that got the copy.

FILE = paths.IMAGE_DIGESTS
"""On a node: id of an image to digests. An id is a hash of what it names, so this stays true."""

MOST = 100
"""Images that are kept, those written last."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def remembered(path: Path, image: str) -> list[str]:
    """Return the digests under which an image was pulled on the node that it came from."""
    return _read(path).get(image, [])


def remember(path: Path, image: str, digests: Iterable[str]) -> None:
    """Keep an image's digests.

    Raises:
        OSError: the file cannot be written.
    """
    known = _read(path)
    wanted = sorted(_valid([*known.pop(image, []), *digests]))
    if not wanted or not _DIGEST.fullmatch(image):
        return
    kept = dict([*known.items(), (image, wanted)][-MOST:])
    durable.make_folder(path.parent)
    durable.write_file(path, json.dumps(kept).encode())


def _read(path: Path) -> dict[str, list[str]]:
    """Return what the file holds; a damaged one costs a pull and no more."""
    items = durable.read_object(path).items()
    return {image: _valid(digests) for image, digests in items if isinstance(digests, list)}


def _valid(digests: Iterable[object]) -> list[str]:
    return list({one: None for one in digests if isinstance(one, str) and _DIGEST.fullmatch(one)})
