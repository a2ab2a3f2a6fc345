"""The operation `copy`: this node's part in the copy of a model from node to node."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_cluster.agent.unit_work import result_of
from spark_cluster.node.host import Host
from spark_cluster.node.store import copy_work, folder_work, plain_folder
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.values import ResourceError

SECRETS = "/run/spark-cluster/copies"
"""Secrets of the senders that run, root-only and in memory: a later run joins the same copy."""
LIMIT_S = 24 * 3600.0
"""Seconds that a copy may take: 400 GB over a network of 1 Gbit/s take one."""

Request = Mapping[str, Any]
Reply = dict[str, Any]


def answer(host: Host, request: Request) -> Reply:
    """Carry out `what` of a request: folder, lacking, secrets, or work.

    Raises:
        ResourceError: it cannot be done, or is unknown here.
    """
    what = request.get("what")
    if what == "folder":
        return _folder(host, request)
    if what == "lacking":
        return _lacking(host, request)
    if what == "secrets":
        return _secrets(host, request)
    if what == "work":
        return _work(host, request)
    raise ResourceError(f"this agent's `copy` has no action {str(what)[:60]!r}")


def _manifest(request: Request) -> Manifest:
    return Manifest.from_document(request["manifest"])


def _where(host: Host, request: Request) -> dict[str, str]:
    """The hub cache or plain folder of a request, as `copy_work.cache_of` takes it."""
    if request.get("folder"):
        folder = str(host.path(str(request["folder"])))
        return {"folder": folder, "ours": str(host.path(plain_folder.OURS))}
    return {"hub": str(host.path(str(request["hub"])))}


def _folder(host: Host, request: Request) -> Reply:
    """Return the manifest of a plain folder; what has not changed is not read."""
    where = _where(host, request)
    argv = folder_work.argv(where["folder"], where["ours"])
    return result_of(host, f"read {request['folder']}", argv, timeout=LIMIT_S)


def _lacking(host: Host, request: Request) -> Reply:
    """Return the bytes to fetch and whether nothing at all is lacking; contents are not read."""
    manifest = _manifest(request)
    lacking = copy_work.cache_of(_where(host, request), manifest, read=False).lacking(manifest)
    return {"bytes": lacking.size, "nothing": lacking.nothing}


def _place(host: Host, manifest: Manifest) -> Path:
    name = hashlib.sha256(f"{manifest.repository}@{manifest.commit}".encode()).hexdigest()[:16]
    return host.path(SECRETS) / f"{name}.json"


def _secrets(host: Host, request: Request) -> Reply:
    """Keep the offered secrets for this copy, unless its sender runs with others; return those."""
    path = _place(host, _manifest(request))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    offered = json.dumps(request["offered"])
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as known:
            text = known.read(1 << 16)
        try:
            return {"secrets": json.loads(text)}
        except ValueError:  # a run was ended while it wrote
            path.unlink(missing_ok=True)
            return _secrets(host, request)
    with os.fdopen(handle, "w") as out:
        out.write(offered)
    return {"secrets": request["offered"]}


def _work(host: Host, request: Request) -> Reply:
    """Receive, send, or both, in a unit that goes on when the laptop is gone."""
    manifest = _manifest(request)
    given: dict[str, Any] = {
        **_where(host, request),
        "manifest": manifest.document(),
        "receive": request.get("receive"),
        "serve": request.get("serve"),
    }
    if given["serve"]:
        given["serve"] = {**given["serve"], "state": str(_place(host, manifest))}
    key = f"copy {manifest.repository}@{manifest.commit[:12]}"
    return result_of(
        host,
        key,
        copy_work.argv(str(request["label"])),
        stdin=json.dumps(given).encode(),
        timeout=LIMIT_S,
    )
