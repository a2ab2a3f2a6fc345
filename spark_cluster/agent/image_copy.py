"""The operation `image`: container images on this node, and its part in the copy of one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from spark_cluster.agent import docker_images
from spark_cluster.agent.unit_work import result_of
from spark_cluster.node import image_digests
from spark_cluster.node.host import Host
from spark_cluster.node.store import image_work
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.image_blobs import common_layers
from spark_cluster.node.store.layout import KEPT_FREE, OURS
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.docker import CONTAINERD_STORE, STORE, docker, image

LIMIT_S = 4 * 3600.0
"""Seconds for writing an image to the disk, or for reading it."""
CLEAN_S = 60.0

Request = Mapping[str, Any]
Reply = dict[str, Any]


def _state(host: Host, request: Request) -> Reply:
    """Return what Docker has under a name; `image` is null where it, or Docker, is not there.

    `left`: files of its copy are there still.
    """
    try:
        found = image(host, str(request["ref"]))
    except Missing:
        found = None
    if found is None:
        return {"image": None}
    copied = image_digests.remembered(host.path(image_digests.FILE), found.id)
    about = {
        "id": found.id,
        "digests": [*found.digests, *copied],
        "layers": list(found.layers),
        "size": found.size,
        "left": _is_left(host, request),
    }
    return {"image": about}


def _common(host: Host, request: Request) -> Reply:
    """Return how many of the lowest `layers` this Docker can do without in `docker load`, and
    whether it keeps images in containerd's store."""
    driver = docker(host, *STORE[1:]).check("docker info")
    if CONTAINERD_STORE in driver.stdout:
        return {"count": 0, "containerd": True}
    known = [one.layers for one in docker_images.stored(host)]
    layers = [str(layer) for layer in request["layers"]]
    return {"count": common_layers(layers, known), "containerd": False}


def _export(host: Host, request: Request) -> Reply:
    """Write `ref` into the cache `hub`; what was written before is not written again."""
    cache = _cache(host, request)
    ref, repository = str(request["ref"]), str(request["repository"])
    there = sum(about.st_size for about in cache.contents(repository).values())
    size = max(0, int(request["size"]) - there)
    if size and cache.files.free() < size + KEPT_FREE:
        raise ResourceError(
            f"{ref} needs {size / 1e9:.1f} GB more below {request['hub']} while it is copied, and "
            f"{KEPT_FREE / 1e9:.1f} GB that stay free; {cache.files.free() / 1e9:.1f} GB are free",
            "make room, or set copies: false for the role images: each node then pulls it itself",
        )
    work = {name: request[name] for name in ("repository", "commit", "ref", "size")}
    return _work(host, f"export {ref}", {**work, "what": "export", **_places(cache)})


def _cache(host: Host, request: Request) -> HubCache:
    return HubCache(host.path(str(request["hub"])), host.path(OURS))


def _is_left(host: Host, request: Request) -> bool:
    """Return whether files of an image are there still from its copy."""
    cache = _cache(host, request)
    with contextlib.suppress(OSError):
        cache.files.stat(cache.folder(str(request["repository"])))
        return True
    return False


def _load(host: Host, request: Request) -> Reply:
    """Give Docker the image of a manifest; `digests`, of its registry, are kept by its `id`."""
    places = _places(_cache(host, request))
    what = f"load {request['ref']} of {str(request['manifest']['commit'])[:12]}"
    reply = _work(host, what, {"what": "load", **places, "manifest": request["manifest"]})
    path = host.path(image_digests.FILE)
    image_digests.remember(path, str(request["id"]), map(str, request["digests"]))
    return reply


def _places(cache: HubCache) -> dict[str, str]:
    return {"hub": str(cache.root), "ours": str(cache.ours)}


def _work(host: Host, key: str, given: Mapping[str, Any]) -> Reply:
    stdin = json.dumps(given).encode()
    return result_of(host, key, image_work.argv(key), stdin=stdin, timeout=LIMIT_S)


def _clean(host: Host, request: Request) -> Reply:
    """Remove what is kept of an image for its copy."""
    cache = _cache(host, request)
    repository = str(request["repository"])
    if _is_left(host, request):
        with alone(cache, repository, CLEAN_S), contextlib.suppress(OSError):  # `left` shows it
            cache.files.remove(cache.folder(repository))
    return {}


def _list(host: Host, _request: Request) -> Reply:
    """Return all images."""
    return {"images": docker_images.images(host)}


def _remove(host: Host, request: Request) -> Reply:
    """Remove `images` (`id`, `names`) one after the other; those that Docker keeps are `kept`."""
    kept = {}
    for one in request["images"]:
        try:
            docker_images.remove(host, str(one["id"]), [str(name) for name in one["names"]])
        except ResourceError as error:
            kept[str(one["id"])] = error.message
    return {"kept": kept}


ACTIONS: dict[str, Callable[[Host, Request], Reply]] = {
    "state": _state,
    "common": _common,
    "export": _export,
    "load": _load,
    "clean": _clean,
    "list": _list,
    "remove": _remove,
}
