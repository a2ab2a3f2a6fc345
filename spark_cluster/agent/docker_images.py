"""The operation `image`: the images that this node's Docker has, what uses them, their removal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from spark_cluster.node import images
from spark_cluster.node.containers import parse_containers
from spark_cluster.node.host import Host
from spark_cluster.node.images import parse_images
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.docker import CONTAINERD_STORE, STORE, docker, image

T = TypeVar("T")

REMOVE_S = 600.0
"""Seconds that the removal of an image may take."""


Request = Mapping[str, Any]
Reply = dict[str, Any]


def _state(host: Host, request: Request) -> Reply:
    """Return what Docker has under a name; `image` is null where it, or Docker, is not there."""
    try:
        found = image(host, str(request["ref"]))
    except Missing:
        found = None
    if found is None:
        return {"image": None}
    copied = images.remembered(host.path(images.FILE), found.id)
    digests = [*found.digests, *copied]
    return {"image": {"id": found.id, "digests": digests, "size": found.size}}


def _store(host: Host, _request: Request) -> Reply:
    """Return whether Docker keeps images in containerd's store, where they have other ids."""
    driver = docker(host, *STORE[1:]).check("docker info")
    return {"containerd": CONTAINERD_STORE in driver.stdout}


def _list(host: Host, _request: Request) -> Reply:
    """Return every image: `id`, `names`, `digests`, `size`, `created`, and the containers that
    stand on it, `used_by`, running ones first.

    Raises:
        Missing: there is no Docker, or it does not answer.
        ResourceError: what it prints is not understood.
    """
    users = _users(host)
    ids = _lines(host, "image", "ls", "--quiet", "--no-trunc")
    listed = _understood(parse_images, _inspected(host, "image", list(dict.fromkeys(ids))))
    names = ("id", "names", "digests", "size", "created")
    found = [{name: getattr(one, name) for name in names} for one in listed]
    return {"images": [{**one, "used_by": users.get(one["id"], [])} for one in found]}


def _remove(host: Host, request: Request) -> Reply:
    """Remove `images` (`id`, `names`) one after the other, each by all of its names and without
    force: Docker keeps one that is used. Those that it keeps are `kept`, with its words."""
    kept = {}
    for one in request["images"]:
        names = [str(name) for name in one["names"]] or [str(one["id"])]
        done = docker(host, "image", "rm", *names, timeout=REMOVE_S)
        if done.status != 0:
            last = done.stderr.strip().rpartition("\n")[2]
            kept[str(one["id"])] = f"{names[0]} was not removed: {last[:300]}"
    return {"kept": kept}


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


ACTIONS: dict[str, Callable[[Host, Request], Reply]] = {
    "state": _state,
    "store": _store,
    "list": _list,
    "remove": _remove,
}
