"""The operations `store` and `copy`: models on this node, and its part in copies between nodes.

Models have state, usage, pins, pruning and verification. A copy is of a model or an image.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spark_cluster.node import dockerd, engine_caches, paths
from spark_cluster.node.durable import read_object, write_file
from spark_cluster.node.host import Host
from spark_cluster.node.store import copy_work, verify
from spark_cluster.node.store.copy_channel import make_secrets
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import Manifest, is_commit, is_repository
from spark_cluster.node.store.usage import LOCK_S, Usage, plan, remove, usage
from spark_cluster.node.units import result_of
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import from_wire
from spark_cluster.resources.hub_model import HubModel

if TYPE_CHECKING:
    from spark_cluster.agent.operations import Action, Reply, Request


READ_S = 6 * 3600.0
"""Seconds that reading a model may take: 400 GB at 20 MB/s."""


class Store:
    """The models on a node, for one request.

    Args:
        request: `hub`, the folder of the hub cache, and what each of the methods says.
    """

    def __init__(self, host: Host, request: Request) -> None:
        self.host = host
        self.request = request
        self.cache = HubCache(host.path(str(request["hub"])), host.path(paths.MODELS))

    def state(self) -> Reply:
        """Return what of the `wanted` (`repository`, `revision`) is here, without reading it."""
        models = [self._state(dict(wanted)) for wanted in self.request["wanted"]]
        return {"models": models, "free": self.cache.files.free()}

    def _state(self, wanted: Request) -> Reply:
        repository, revision = str(wanted["repository"]), str(wanted.get("revision", "main"))
        commit = self.cache.commit_of(repository, revision)
        reply: Reply = {"commit": commit, "manifest": None, "missing": [], "problem": ""}
        reply |= {"missing_bytes": 0, "links": [], "elsewhere": ""}
        if commit is None:
            return reply | self._elsewhere(repository, revision)
        manifest, missing, problem = self.cache.held(repository, commit)
        if manifest is None or missing is None:
            return reply | {"problem": problem} | self._elsewhere(repository, revision)
        return reply | {
            "manifest": manifest.document(),
            "missing": missing.paths,
            "missing_bytes": missing.size,
            "links": list(missing.links),
        }

    def _elsewhere(self, repository: str, revision: str) -> Reply:
        """Return the cache of another tool that has it whole, to adopt it: root's, or that of the
        user who has logged in."""
        for place, other in verify.homes(self.host.root, _user()).items():
            commit = other.commit_of(repository, revision)
            if other.root != self.cache.root and commit is not None:
                with contextlib.suppress(ResourceError, OSError):
                    found = other.found(repository, commit).document()
                    return {"elsewhere": place, "commit": commit, "adoptable": found}
        return {}

    def usage(self) -> Reply:
        """Return all revisions and the totals."""
        found = self._usage()
        return {
            "revisions": [asdict(revision) for revision in found.revisions],
            "size": found.size,
            "unfinished": found.unfinished,
            "unused": found.unused,
            "free": self.cache.files.free(),
        }

    def _usage(self) -> Usage:
        served = engine_caches.served(self.host.root)
        return usage(self.cache, served, self.host.path("/proc"))

    def pin(self) -> Reply:
        """Pin the model `name`, or unpin it where `pinned` is false: ORG/NAME, or ORG/NAME@REVISION
        for one revision."""
        name, pinned = self._named(self.request["name"]), bool(self.request["pinned"])
        return {"changed": self.cache.records.pin(name, time.time(), pinned=pinned)}

    def _named(self, name: object) -> str:
        """Return a model's name with the commit of the revision that it names, if it does."""
        repository, _, revision = str(name).partition("@")
        if not revision:
            return repository
        commit = self.cache.commit_of(repository, revision)
        if commit is None:
            raise ResourceError(
                f"the revision {revision[:80]!r} of {repository} is not on this node",
                "`spark-cluster models list` shows what is there",
            )
        return f"{repository}@{commit}"

    def prune(self) -> Reply:
        """Plan, and with `apply` remove; see `plan` for `keep`, `only`, `bytes`, `unused_s`."""
        found = self._usage()
        removed, kept = plan(
            self.cache,
            found,
            time.time(),
            keep=[(str(name), str(ref)) for name, ref in self.request.get("keep", [])],
            only=list(map(self._named, self.request.get("only", []))),
            free=int(self.request.get("bytes", 0)),
            unused_s=float(self.request.get("unused_s", 0.0)),
        )
        if self.request.get("apply"):
            removed, busy = remove(self.cache, found, removed)
            kept += busy
        return {
            "removed": [asdict(revision) for revision in removed],
            "kept": [{**asdict(revision), "reason": why} for revision, why in kept],
            "freed": found.freed(removed),
        }

    def preview(self) -> Reply:
        """Ask the hub what a pull of the HubModel `model` would fetch; nothing is fetched."""
        return cast("HubModel", from_wire(self.request["model"])).preview(self.host)

    def verify(self) -> Reply:
        """Read a revision (`repository`, `commit`) and compare it with its hashes."""
        return self._long("verify")

    def adopt(self) -> Reply:
        """Take a revision over from the hub cache `other`, with `revision` as its branch.

        Raises:
            ResourceError: the cache is neither root's nor that of the user who has logged in.
        """
        more = {name: str(self.request.get(name, "")) for name in ("other", "revision")}
        return self._long("adopt", **more, root=str(self.host.root), user=_user())

    def remove_damaged(self) -> Reply:
        """Remove the blobs of damaged files (`paths`) and make the links that are missing.

        Each file is known by the manifest; nothing else is removed.
        """
        repository, commit = self._revision()
        manifest = self.cache.known(repository, commit)
        damaged = {str(path) for path in self.request.get("paths", [])}
        blobs = {file.blob for file in manifest.files if file.path in damaged}
        with alone(self.cache, repository, LOCK_S):
            self.cache.records.keep(manifest)
            for blob in sorted(blobs):
                self.cache.files.remove(self.cache.blob(repository, blob))
            missing = self.cache.missing(manifest)
            if missing.links and not missing.paths:
                self.cache.publish(manifest)
        return {"removed": len(blobs), "links": 0 if missing.paths else len(missing.links)}

    def _revision(self) -> tuple[str, str]:
        repository, commit = str(self.request["repository"]), str(self.request["commit"])
        if not is_repository(repository) or not is_commit(commit):
            raise ResourceError(f"{repository[:100]}@{commit[:60]} is not a model's revision")
        return repository, commit

    def _long(self, what: str, **more: Any) -> Reply:
        """Run it in a unit of its own, which goes on when the laptop is gone."""
        repository, commit = self._revision()
        work = {"what": what, "repository": repository, "commit": commit, **more}
        folders = {"hub": str(self.cache.root), "ours": str(self.cache.ours)}
        argv = verify.argv({**work, **folders})
        key = f"{what} {repository}@{commit[:12]}"
        return result_of(self.host, key, argv, timeout=READ_S)


def _user() -> str:
    """The user from whom sudo has made root."""
    return os.environ.get("SUDO_USER", "root")


def _on_store(method: Callable[[Store], Reply]) -> Action:
    return lambda host, request: method(Store(host, request))


_METHODS = (
    *(Store.state, Store.usage, Store.pin, Store.prune, Store.preview),
    *(Store.verify, Store.adopt, Store.remove_damaged),
)
_STORE: dict[str, Action] = {method.__name__: _on_store(method) for method in _METHODS}


# The operation `copy`: this node's part in a copy of a model or an image from node to node.

SECRETS = "offered.json"
LIMIT_S = 24 * 3600.0
"""Seconds that a copy may take: 400 GB over a network of 1 Gbit/s take one."""


def _where(host: Host, request: Request) -> dict[str, str]:
    """The hub cache or plain folder of a request, as `copy_work.cache_of` takes it."""
    if request.get("folder"):
        folder = str(host.path(str(request["folder"])))
        return {"folder": folder, "ours": str(host.path(paths.FOLDERS))}
    return {"hub": str(host.path(str(request["hub"]))), "ours": str(host.path(paths.MODELS))}


def _folder_manifest(host: Host, request: Request) -> Reply:
    """Return the manifest of a plain folder; what has not changed is not read."""
    asked = {"what": "folder", **_where(host, request), "exact": bool(request.get("exact"))}
    return result_of(host, f"read {request['folder']}", verify.argv(asked), timeout=LIMIT_S)


def _missing(host: Host, request: Request) -> Reply:
    """Return the bytes to fetch and whether nothing at all is missing; contents are not read."""
    manifest = Manifest.from_document(request["manifest"])
    missing = copy_work.cache_of(_where(host, request), manifest, read=False).missing(manifest)
    return {"bytes": missing.size, "nothing": missing.nothing}


def _place(host: Host, request: Request) -> Path:
    name = hashlib.sha256(str(request["name"]).encode()).hexdigest()[:16]
    return host.path(paths.COPIES) / name


def _begin_copy(host: Host, request: Request) -> Reply:
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


def _copy(host: Host, request: Request) -> Reply:
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
        path = host.path(paths.IMAGE_DIGESTS)
        dockerd.remember(path, str(request["id"]), map(str, request["digests"]))
    return done


def _end_copy(host: Host, request: Request) -> Reply:
    """Have this node's part end, with the secrets of its sender; it has LOOK_S for that."""
    shutil.rmtree(_place(host, request), ignore_errors=True)
    return {}


_COPY: dict[str, Action] = {
    "folder": _folder_manifest,
    "missing": _missing,
    "begin": _begin_copy,
    "work": _copy,
    "end": _end_copy,
}

ACTIONS = {"copy": _COPY, "store": _STORE}
