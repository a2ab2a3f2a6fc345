"""The operation `caches`: records of launches, and what this node's engine caches hold."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_cluster.node import engine_caches, launch_records
from spark_cluster.node.host import Host

Reply = dict[str, Any]

LOG_S = 30.0
"""Seconds that reading a server's log may take."""

MOST_FOUND = 200
"""Different matches in a log that are sent: some for each rank and graph."""


def _folder(host: Host, request: Mapping[str, Any]) -> Path:
    return host.path(str(request["folder"]))


def _state(host: Host, request: Mapping[str, Any]) -> Reply:
    """The records, and the compiled configurations that are there; sizes take longer."""
    return {
        "launches": [record.to_dict() for record in launch_records.read(host.root)],
        "compiled": engine_caches.compiled_keys(_folder(host, request)),
        "tuned": engine_caches.tuned(_folder(host, request)),
    }


def _known(host: Host, request: Mapping[str, Any]) -> Reply:
    """Whether the newest record is of this run, and otherwise what its log matches.

    The log is searched here, so that it need not travel.
    """
    newest = next(iter(launch_records.read(host.root)), None)
    if newest is not None and newest.run == request["run"]:
        return {"known": True, "found": []}
    done = host.run(request["log"], timeout=LOG_S)
    found = re.findall(str(request["pattern"]), done.stdout)
    return {"known": False, "found": list(dict.fromkeys(found))[:MOST_FOUND]}


def _record(host: Host, request: Mapping[str, Any]) -> Reply:
    """Keep a record, with this node's clock."""
    record = launch_records.from_dict(request["record"])
    if record is None:
        return {"error": "the record of the launch does not have the form of one"}
    launch_records.add(host.root, replace(record, last=time.time()))
    return {}


def _usage(host: Host, request: Mapping[str, Any]) -> Reply:
    entries = engine_caches.usage(_folder(host, request))
    records = launch_records.read(host.root)
    return {
        "entries": [entry.to_dict() for entry in entries],
        "launches": [record.to_dict() for record in records],
        "now": time.time(),
    }


def _written(host: Host, request: Mapping[str, Any]) -> Reply:
    """Return the size of an image's caches; 0 files where not all of it could be counted."""
    path = f"{engine_caches.IMAGES}/{request['name']}"
    found = engine_caches.Count().entry("", _folder(host, request), path)
    return {"files": found.files, "bytes": found.bytes} if found.whole else {"files": 0, "bytes": 0}


def _remove(host: Host, request: Mapping[str, Any]) -> Reply:
    return {"removed": engine_caches.remove(_folder(host, request), set(request["paths"]))}


ACTIONS: dict[str, Callable[[Host, Mapping[str, Any]], Reply]] = {
    "state": _state,
    "known": _known,
    "record": _record,
    "usage": _usage,
    "written": _written,
    "remove": _remove,
}
