"""The guard of a node's memory while weights load: how it is started, and the reason it leaves.

It keeps memory free, and ends the load before the node freezes (`load_watch`).
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass

from spark_cluster.node import memory, own_program, paths

FLOOR_KIB = memory.SSH_STOPS_KIB + 2**19
"""MemAvailable below which the load is ended: 3.5 GiB, between what the plan leaves (4 GiB, see
models/memory_share.py) and where SSH stops."""

LAST_RESORT_S = 60.0
"""Seconds after its own limit at which systemd ends the guard."""

PROGRAM = "spark_cluster.node.load_watch"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,200}")


@dataclass(frozen=True)
class Settings:
    """What a guard is told.

    Attributes:
        server: name of the program that loads; its unit and its reason are named by it.
        programs: names of our own containers or units that are ended.
        limit_s: seconds after which the guard ends in any case.
        health: URL of the server, which answers 200 when it is ready; empty where none is asked.
        root: where the node's file system begins; "/" but in tests.
    """

    server: str
    programs: tuple[str, ...]
    limit_s: float
    health: str = ""
    root: str = "/"


@dataclass(frozen=True)
class Reason:
    """Why a load was ended: the memory at that moment.

    Attributes:
        available_kib, free_kib, swap_free_kib: of /proc/meminfo.
        pressure: percent of the last 10 s in which every program waited for memory.
        at: seconds since 1970.
    """

    available_kib: int
    free_kib: int
    swap_free_kib: int
    pressure: float | None
    at: float

    def __str__(self) -> str:
        gib = [kib / 2**20 for kib in (self.available_kib, self.free_kib, self.swap_free_kib)]
        waited = "" if self.pressure is None else f", memory pressure {self.pressure:g} %"
        when = time.strftime("%H:%M:%S", time.localtime(self.at))
        return (
            f"{gib[0]:.1f} GiB were available at {when} ({gib[1]:.1f} GiB free, {gib[2]:.1f} GiB "
            f"of swap free{waited}), less than the {FLOOR_KIB / 2**20:g} GiB below which a node "
            "soon stops answering"
        )


def parse(text: str | None) -> Reason | None:
    """Read the reason that a guard has left; None where there is none, or it is not understood."""
    try:
        found = json.loads(text or "")
        available, free, swap = (
            int(found[f"{name}_kib"]) for name in ("available", "free", "swap_free")
        )
        waited = None if found["pressure"] is None else float(found["pressure"])
        return Reason(available, free, swap, waited, min(max(0.0, float(found["at"])), 2.0**32))
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def reason_file(server: str) -> str:
    """Return where the guard of a server leaves its reason."""
    return f"{paths.LOAD_GUARD}/{server}.json"


def unit(server: str) -> str:
    """Return the name of the guard's unit."""
    return f"spark-cluster-load-guard-{server}.service"


def start(settings: Settings, search_path: str) -> list[str]:
    """Return the command that starts a guard."""
    return own_program.in_unit(
        unit(settings.server),
        own_program.argv(PROGRAM, json.dumps(asdict(settings))),
        {
            "Description": f"spark-cluster: memory while {settings.server} loads",
            "Environment": f"PATH={search_path}",
            "RuntimeMaxSec": f"{settings.limit_s + LAST_RESORT_S:.0f}",
            # Where it is ending the load it goes on until that is done.
            **{"KillMode": "mixed", "TimeoutStopSec": "30"},
            "OOMScoreAdjust": "-1000",
            "LimitMEMLOCK": "infinity",
        },
    )
