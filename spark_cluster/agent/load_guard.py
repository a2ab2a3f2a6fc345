"""The operation `load_guard`: the memory of this node before a load, and its guard meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from spark_cluster.node import load_watch, own_program
from spark_cluster.node.host import Host
from spark_cluster.node.units import BOOTED
from spark_cluster.node.values import ResourceError

LONGEST_S = 24 * 3600.0
"""Seconds after which a guard ends, whatever it is told."""

Request = Mapping[str, Any]
Reply = dict[str, Any]


def _prepare(host: Host, _request: Request) -> Reply:
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


def _begin(host: Host, request: Request) -> Reply:
    """Start the guard of a server, in place of one that an earlier run has left."""
    server, programs = _name(request["server"]), tuple(map(_name, request["programs"]))
    _end(host, request)
    if not host.path(BOOTED).is_dir() or host.which("systemd-run") is None:
        return {}
    limit = min(float(request["limit_s"]), LONGEST_S)
    health = str(request.get("health", ""))
    settings = load_watch.Settings(server, programs, limit, health, str(host.root))
    host.run(load_watch.start(settings, host.search_path)).check("starting the load guard")
    return {}


def _end(host: Host, request: Request) -> Reply:
    """End the guard of a server, of which nothing stays."""
    server = _name(request["server"])
    if host.which("systemctl") is not None:
        host.run(("systemctl", "stop", load_watch.unit(server)))  # fails where it has ended
    path = host.path(load_watch.reason_file(server))
    with contextlib.suppress(OSError):  # there is none, or another server has one
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    return {}


def _name(found: object) -> str:
    if load_watch.NAME.fullmatch(str(found)) is None:
        raise ResourceError(f"{str(found)[:60]!r} is not the name of a program of ours")
    return str(found)


ACTIONS: dict[str, Callable[[Host, Request], Reply]] = {
    "prepare": _prepare,
    "begin": _begin,
    "end": _end,
}
