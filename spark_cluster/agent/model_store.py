"""The operation `store`: models on this node, their state, usage, pins, pruning, verification."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, cast

from spark_cluster.node import launch_records, paths
from spark_cluster.node.host import Host
from spark_cluster.node.store import verify
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import is_commit, is_repository
from spark_cluster.node.store.usage import LOCK_S, Usage, plan, remove, usage
from spark_cluster.node.units import result_of
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import from_wire
from spark_cluster.resources.hub_model import HubModel

LONGEST_S = 6 * 3600.0
"""Seconds that reading a model may take: 400 GB at 20 MB/s."""

Request = Mapping[str, Any]
Reply = dict[str, Any]


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
        served = launch_records.served(self.host.root)
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
        return result_of(self.host, key, argv, timeout=LONGEST_S)


def _user() -> str:
    """The user from whom sudo has made root."""
    return os.environ.get("SUDO_USER", "root")


def _on_store(method: Callable[[Store], Reply]) -> Callable[[Host, Request], Reply]:
    return lambda host, request: method(Store(host, request))


ACTIONS: dict[str, Callable[[Host, Request], Reply]] = {
    method.__name__: _on_store(method)
    for method in (
        *(Store.state, Store.usage, Store.pin, Store.prune, Store.preview),
        *(Store.verify, Store.adopt, Store.remove_damaged),
    )
}
