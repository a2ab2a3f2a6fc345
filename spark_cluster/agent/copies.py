"""The operation `copy`: this node's part in a copy of a model or an image from node to node."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.node import images, paths
from spark_cluster.node.durable import read_object, write_file
from spark_cluster.node.host import Host
from spark_cluster.node.store import copy_work, verify
from spark_cluster.node.store.copy_channel import make_secrets
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.units import result_of

COPIES = paths.COPIES
"""Root-only and in memory: a folder for each part of a copy, which ends with it, with the keys of
its sender: a later run joins the same copy."""
SECRETS = "offered.json"
LIMIT_S = 24 * 3600.0
"""Seconds that a copy may take: 400 GB over a network of 1 Gbit/s take one."""

Request = Mapping[str, Any]
Reply = dict[str, Any]


def _manifest(request: Request) -> Manifest:
    return Manifest.from_document(request["manifest"])


def _where(host: Host, request: Request) -> dict[str, str]:
    """The hub cache or plain folder of a request, as `copy_work.cache_of` takes it."""
    if request.get("folder"):
        folder = str(host.path(str(request["folder"])))
        return {"folder": folder, "ours": str(host.path(paths.FOLDERS))}
    return {"hub": str(host.path(str(request["hub"]))), "ours": str(host.path(paths.MODELS))}


def _folder(host: Host, request: Request) -> Reply:
    """Return the manifest of a plain folder; what has not changed is not read."""
    asked = {"what": "folder", **_where(host, request), "exact": bool(request.get("exact"))}
    return result_of(host, f"read {request['folder']}", verify.argv(asked), timeout=LIMIT_S)


def _missing(host: Host, request: Request) -> Reply:
    """Return the bytes to fetch and whether nothing at all is missing; contents are not read."""
    manifest = _manifest(request)
    missing = copy_work.cache_of(_where(host, request), manifest, read=False).missing(manifest)
    return {"bytes": missing.size, "nothing": missing.nothing}


def _place(host: Host, request: Request) -> Path:
    name = hashlib.sha256(str(request["name"]).encode()).hexdigest()[:16]
    return host.path(COPIES) / name


def _begin(host: Host, request: Request) -> Reply:
    """Note that this node's part is wanted, before any node does its part; of a sender, return the
    secrets and the port, or those of the one that runs."""
    place = _place(host, request)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.mkdir(mode=0o700, exist_ok=True)
    return {"secrets": _secrets(host, place, request["ports"]) if request["sends"] else None}


def _secrets(host: Host, place: Path, ports: Sequence[int]) -> dict[str, Any]:
    """Make the secrets of this copy, with a port of its own, unless its sender runs with others;
    return those."""
    handle = os.open(place.parent / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # held for the time of a few small files
        known = read_object(place / SECRETS)
        if not known:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(mode=0o700)
            others = map(read_object, place.parent.glob(f"*/{SECRETS}"))
            taken = [one.get("port") for one in others]
            known = {**make_secrets(place, host.processes), "port": _free(ports, taken)}
            write_file(place / SECRETS, json.dumps(known).encode(), 0o600)
    finally:
        os.close(handle)
    return known


def _free(ports: Sequence[int], taken: Collection[int | None]) -> int:
    """Return a port that no other copy has, and nothing else listens on; the first where all are
    taken, so that the sender says it."""
    for port in sorted(ports, key=lambda port: port in taken):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("", int(port)))
            return int(port)
    return int(ports[0])


def _work(host: Host, request: Request) -> Reply:
    """Receive, send, or both, in a unit that goes on when the laptop is gone."""
    place, image = _place(host, request), request.get("image")
    given: dict[str, Any] = {
        **({"image": image, "size": request["size"]} if image else _where(host, request)),
        **{name: request.get(name) for name in ("manifest", "receive", "serve", "encrypted")},
        "place": str(place),
    }
    done = result_of(
        host,
        f"copy {request['name']}",
        copy_work.argv(str(request["label"])),
        stdin=json.dumps(given).encode(),
        timeout=LIMIT_S,
    )
    if image and given["receive"]:
        path = host.path(images.FILE)
        images.remember(path, str(request["id"]), map(str, request["digests"]))
    return done


def _end(host: Host, request: Request) -> Reply:
    """Have this node's part end, with the secrets of its sender; it has LOOK_S for that."""
    shutil.rmtree(_place(host, request), ignore_errors=True)
    return {}


ACTIONS: dict[str, Callable[[Host, Request], Reply]] = {
    "folder": _folder,
    "missing": _missing,
    "begin": _begin,
    "work": _work,
    "end": _end,
}
