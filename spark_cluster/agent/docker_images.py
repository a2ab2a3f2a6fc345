"""The images that this node's Docker has, what uses them, and their removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from spark_cluster.node.containers import parse_containers
from spark_cluster.node.images import DockerImage, parse_images
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.docker import docker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_cluster.node.host import Host

T = TypeVar("T")

REMOVE_S = 600.0
"""Seconds that the removal of an image may take."""


def images(host: Host) -> list[dict[str, Any]]:
    """Return every image: `id`, `names`, `digests`, `size`, `created`, `layers`, and the containers
    that stand on it, `used_by`, running ones first.

    Raises:
        Missing: there is no Docker, or it does not answer.
        ResourceError: what it prints is not understood.
    """
    users = _users(host)
    return [
        {
            "id": one.id,
            "names": list(one.names),
            "digests": list(one.digests),
            "size": one.size,
            "created": one.created,
            "layers": list(one.layers),
            "used_by": users.get(one.id, []),
        }
        for one in stored(host)
    ]


def stored(host: Host) -> tuple[DockerImage, ...]:
    """Return every image; raises as `images`."""
    ids = _lines(host, "image", "ls", "--quiet", "--no-trunc")
    return _understood(parse_images, _inspected(host, "image", list(dict.fromkeys(ids))))


def remove(host: Host, image: str, names: Sequence[str]) -> None:
    """Remove an image by all of its names, without force: Docker keeps one that is used.

    Raises:
        ResourceError: with Docker's words.
    """
    done = docker(host, "image", "rm", *(names or (image,)), timeout=REMOVE_S)
    if done.status != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise ResourceError(f"{(names or (image,))[0]} was not removed: {last[:300]}")


def _users(host: Host) -> dict[str, list[str]]:
    """Return an image's id to the names of its containers, the running ones first."""
    listed = _lines(host, "container", "ls", "--all", "--quiet", "--no-trunc")
    shown = _understood(parse_containers, _inspected(host, "container", listed))
    found: dict[str, list[str]] = {}
    for one in sorted(shown, key=lambda one: not one.running):
        found.setdefault(one.image, []).append(one.name)
    return found


def _lines(host: Host, *words: str) -> list[str]:
    return docker(host, *words).check(f"docker {words[0]} ls").stdout.split()


def _inspected(host: Host, kind: str, names: Sequence[str]) -> str:
    """Return what Docker tells of these objects; one that has gone meanwhile is left out."""
    return docker(host, kind, "inspect", *names).stdout if names else "[]"


def _understood(parse: Callable[[str], tuple[T, ...]], printed: str) -> tuple[T, ...]:
    try:
        return parse(printed)
    except ValueError as error:
        raise ResourceError(str(error)) from None
