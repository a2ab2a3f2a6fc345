"""Operations that have several actions: `caches`, `image` and `load_guard`; few runs want them.

Each action is a function from request to reply; `ACTIONS` has them by operation and `what`.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spark_cluster.node import dockerd, engine_caches, load_watch, own_program, paths
from spark_cluster.node.containers import parse_containers
from spark_cluster.node.dockerd import CONTAINERD_STORE, STORE, docker, image, parse_images
from spark_cluster.node.host import Host
from spark_cluster.node.units import BOOTED
from spark_cluster.node.values import Missing, ResourceError

if TYPE_CHECKING:
    from spark_cluster.agent.operations import Action, Reply, Request

# The operation `caches`: records of launches, and what this node's engine caches hold.

LOG_S = 30.0
"""Seconds that reading a server's log may take."""

MOST_FOUND = 200
"""Different matches in a log that are sent: some for each rank and graph."""


def _cache_folder(host: Host, request: Request) -> Path:
    return host.path(str(request["folder"]))


def _cache_state(host: Host, request: Request) -> Reply:
    """The records, and the compiled configurations that are there; sizes take longer."""
    return {
        "launches": [asdict(record) for record in engine_caches.launches(host.root)],
        "compiled": engine_caches.compiled_keys(_cache_folder(host, request)),
        "tuned": engine_caches.tuned(_cache_folder(host, request)),
    }


def _launch_known(host: Host, request: Request) -> Reply:
    """Whether the newest record is of this run, and otherwise what its log matches.

    The log is searched here, so that it need not travel.
    """
    newest = next(iter(engine_caches.launches(host.root)), None)
    if newest is not None and newest.run == request["run"]:
        return {"known": True, "found": []}
    done = host.run(request["log"], timeout=LOG_S)
    found = re.findall(str(request["pattern"]), done.stdout)
    return {"known": False, "found": list(dict.fromkeys(found))[:MOST_FOUND]}


def _record_launch(host: Host, request: Request) -> Reply:
    """Keep a record, with this node's clock."""
    record = engine_caches.launch_from_dict(request["record"])
    if record is None:
        return {"error": "the record of the launch does not have the form of one"}
    engine_caches.add_launch(host.root, replace(record, last=time.time()))
    return {}


def _cache_usage(host: Host, request: Request) -> Reply:
    entries = engine_caches.usage(_cache_folder(host, request))
    records = engine_caches.launches(host.root)
    return {
        "entries": [asdict(entry) for entry in entries],
        "launches": [asdict(record) for record in records],
        "now": time.time(),
    }


def _cache_written(host: Host, request: Request) -> Reply:
    """Return the size of an image's caches; 0 files where not all of it could be counted."""
    path = f"{engine_caches.IMAGES}/{request['name']}"
    found = engine_caches.Count().entry("", _cache_folder(host, request), path)
    return {"files": found.files, "bytes": found.bytes} if found.whole else {"files": 0, "bytes": 0}


def _remove_caches(host: Host, request: Request) -> Reply:
    return {"removed": engine_caches.remove(_cache_folder(host, request), set(request["paths"]))}


_CACHES: dict[str, Action] = {
    "state": _cache_state,
    "known": _launch_known,
    "record": _record_launch,
    "usage": _cache_usage,
    "written": _cache_written,
    "remove": _remove_caches,
}


# The operation `image`: the images that this node's Docker has, what uses them, their removal.

T = TypeVar("T")

REMOVE_IMAGE_S = 600.0
"""Seconds that the removal of an image may take."""


def _image_state(host: Host, request: Request) -> Reply:
    """Return what Docker has under a name; `image` is null where it, or Docker, is not there."""
    try:
        found = image(host, str(request["ref"]))
    except Missing:
        found = None
    if found is None:
        return {"image": None}
    copied = dockerd.remembered(host.path(paths.IMAGE_DIGESTS), found.id)
    digests = [*found.digests, *copied]
    return {"image": {"id": found.id, "digests": digests, "size": found.size}}


def _image_store(host: Host, _request: Request) -> Reply:
    """Return whether Docker keeps images in containerd's store, where they have other ids."""
    driver = docker(host, *STORE[1:]).check("docker info")
    return {"containerd": CONTAINERD_STORE in driver.stdout}


def _list_images(host: Host, _request: Request) -> Reply:
    """Return every image: `id`, `names`, `digests`, `size`, `created`, and the containers that
    stand on it, `used_by`, running ones first.

    Raises:
        Missing: there is no Docker, or it does not answer.
        ResourceError: what it prints is not understood.
    """
    users = _image_users(host)
    ids = _docker_lines(host, "image", "ls", "--quiet", "--no-trunc")
    listed = _understood(parse_images, _docker_inspected(host, "image", list(dict.fromkeys(ids))))
    names = ("id", "names", "digests", "size", "created")
    found = [{name: getattr(one, name) for name in names} for one in listed]
    return {"images": [{**one, "used_by": users.get(one["id"], [])} for one in found]}


def _remove_images(host: Host, request: Request) -> Reply:
    """Remove `images` (`id`, `names`) one after the other, each by all of its names and without
    force: Docker keeps one that is used. Those that it keeps are `kept`, with its words."""
    kept = {}
    for one in request["images"]:
        names = [str(name) for name in one["names"]] or [str(one["id"])]
        done = docker(host, "image", "rm", *names, timeout=REMOVE_IMAGE_S)
        if done.status != 0:
            last = done.stderr.strip().rpartition("\n")[2]
            kept[str(one["id"])] = f"{names[0]} was not removed: {last[:300]}"
    return {"kept": kept}


def _image_users(host: Host) -> dict[str, list[str]]:
    """Return an image's id to the names of its containers, the running ones first."""
    listed = _docker_lines(host, "container", "ls", "--all", "--quiet", "--no-trunc")
    shown = _understood(parse_containers, _docker_inspected(host, "container", listed))
    found: dict[str, list[str]] = {}
    for one in sorted(shown, key=lambda one: not one.running):
        found.setdefault(one.image, []).append(one.name)
    return found


def _docker_lines(host: Host, *words: str) -> list[str]:
    return docker(host, *words).check(f"docker {words[0]} ls").stdout.split()


def _docker_inspected(host: Host, kind: str, names: Sequence[str]) -> str:
    """Return what Docker tells of these objects; one that has gone meanwhile is left out."""
    return docker(host, kind, "inspect", *names).stdout if names else "[]"


def _understood(parse: Callable[[str], tuple[T, ...]], printed: str) -> tuple[T, ...]:
    try:
        return parse(printed)
    except ValueError as error:
        raise ResourceError(str(error)) from None


_IMAGE: dict[str, Action] = {
    "state": _image_state,
    "store": _image_store,
    "list": _list_images,
    "remove": _remove_images,
}


# The operation `load_guard`: the memory of this node before a load, and its guard meanwhile.

LONGEST_GUARD_S = 24 * 3600.0
"""Seconds after which a guard ends, whatever it is told."""


def _prepare_memory(host: Host, _request: Request) -> Reply:
    """Give the page cache back and compact memory; return what came of it.

    The pressure is that from before: compaction itself makes some.
    """
    pressure = load_watch.pressure(host.root)
    argv = own_program.argv(load_watch.RECLAIM, str(host.root))
    try:
        done = host.run(argv, timeout=load_watch.RECLAIM_S)
        problem = done.stderr.strip() if done.status != 0 else ""
    except ResourceError as error:  # a disk that does not take what is to be written
        problem = error.message
    blocks = ""
    with contextlib.suppress(OSError):
        blocks = host.path("/proc/buddyinfo").read_text()
    return {
        "pressure": pressure,
        "problem": problem,
        "buddyinfo": blocks,
        "page_size": os.sysconf("SC_PAGE_SIZE"),
    }


def _begin_guard(host: Host, request: Request) -> Reply:
    """Start the guard of a server, in place of one that an earlier run has left."""
    server = _program_name(request["server"])
    programs = tuple(map(_program_name, request["programs"]))
    _end_guard(host, request)
    if not host.path(BOOTED).is_dir() or host.which("systemd-run") is None:
        return {}
    limit = min(float(request["limit_s"]), LONGEST_GUARD_S)
    health = str(request.get("health", ""))
    settings = load_watch.GuardSettings(server, programs, limit, health, str(host.root))
    host.run(load_watch.start(settings, host.search_path)).check("starting the load guard")
    return {}


def _end_guard(host: Host, request: Request) -> Reply:
    """End the guard of a server, of which nothing stays."""
    server = _program_name(request["server"])
    if host.which("systemctl") is not None:
        host.run(("systemctl", "stop", load_watch.unit(server)))  # fails where it has ended
    path = host.path(load_watch.reason_file(server))
    with contextlib.suppress(OSError):  # there is none, or another server has one
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    return {}


def _program_name(found: object) -> str:
    if load_watch.NAME.fullmatch(str(found)) is None:
        raise ResourceError(f"{str(found)[:60]!r} is not the name of one of our programs")
    return str(found)


_LOAD_GUARD: dict[str, Action] = {
    "prepare": _prepare_memory,
    "begin": _begin_guard,
    "end": _end_guard,
}

ACTIONS = {"caches": _CACHES, "image": _IMAGE, "load_guard": _LOAD_GUARD}
