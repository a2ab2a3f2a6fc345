"""The images that this node's Docker has, what uses them, and their removal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spark_cluster.node.values import ResourceError
from spark_cluster.resources.docker import docker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_cluster.node.host import Host

REMOVE_S = 600.0
"""Seconds that the removal of an image may take."""


def images(host: Host) -> list[dict[str, Any]]:
    """Return every image: `id`, `names`, `digests`, `size`, `created`, `layers`, and the containers
    that stand on it, `used_by`, running ones first.

    Raises:
        Missing: there is no Docker, or it does not answer.
        ResourceError: what it prints is not understood.
    """
    ids = _lines(host, "image", "ls", "--quiet", "--no-trunc")
    users = _users(host)
    found = _inspected(host, "image", list(dict.fromkeys(ids)))
    return [
        {
            "id": str(one.get("Id", "")),
            "names": _texts(one.get("RepoTags")),
            "digests": _texts(one.get("RepoDigests")),
            "size": int(one.get("Size") or 0),
            "created": str(one.get("Created", "")),
            "layers": _texts((one.get("RootFS") or {}).get("Layers")),
            "used_by": users.get(str(one.get("Id", "")), []),
        }
        for one in found
    ]


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
    found: dict[str, list[str]] = {}
    shown = _inspected(host, "container", listed)
    for one in sorted(shown, key=lambda one: not (one.get("State") or {}).get("Running")):
        name = str(one.get("Name", "")).lstrip("/")
        found.setdefault(str(one.get("Image", "")), []).append(name)
    return found


def _lines(host: Host, *words: str) -> list[str]:
    return docker(host, *words).check(f"docker {words[0]} ls").stdout.split()


def _inspected(host: Host, kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
    if not names:
        return []
    done = docker(host, kind, "inspect", *names)  # one that has gone meanwhile is left out
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ResourceError(f"docker {kind} inspect printed no list of objects")
    return found


def _texts(found: object) -> list[str]:
    return [str(one) for one in found] if isinstance(found, list) else []
