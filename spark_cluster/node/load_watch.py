"""The memory of a node, and the guard that keeps some free while weights load.

The page cache is not free memory to CUDA, and fills what lies between what is taken: the driver,
which needs physically contiguous memory, is refused while gigabytes are free. The guard drops the
cache, and ends the load before the node freezes. It is a process of its own in a transient unit, so
that it neither needs the laptop nor waits for anyone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spark_cluster.node import durable, own_program, paths
from spark_cluster.node.health import judge
from spark_cluster.node.http import ask

# What /proc says of memory, and how the page cache is given back.

SSH_STOPS_KIB = 3 * 2**20
"""MemAvailable below which a Spark stops answering SSH."""

RECLAIM = f"{__name__}:reclaim"
"""The program that gives the page cache back (`own_program`)."""

RECLAIM_S = 300.0
"""Seconds for writing changed pages, dropping all that are clean, and compaction."""

_KIB = re.compile(r"^(\w+):\s+([0-9]{1,15}) kB$", re.MULTILINE)
_FULL = re.compile(r"^full avg10=([0-9]{1,3}(?:\.[0-9]{1,2})?) ", re.MULTILINE)


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """Return the figures of /proc/meminfo by name, KiB.

    Raises:
        OSError: it cannot be read.
    """
    text = (root / "proc/meminfo").read_text()
    return {name: int(value) for name, value in _KIB.findall(text)}


def pressure(root: Path = Path("/")) -> float | None:
    """Return the percent of the last 10 s in which every program waited for memory (PSI, `full
    avg10` of /proc/pressure/memory); None where the kernel does not tell."""
    try:
        found = _FULL.search((root / "proc/pressure/memory").read_text())
    except OSError:
        return None
    return float(found[1]) if found else None


def drop(root: Path = Path("/")) -> None:
    """Drop clean pages of files, and move what is taken together (compaction).

    Raises:
        OSError: the kernel refuses it, or has no compaction.
    """
    for setting, value in (("drop_caches", "3"), ("compact_memory", "1")):
        (root / "proc/sys/vm" / setting).write_text(value)


def reclaim(root: str) -> int:
    """Write changed pages to the disk, so that they can be dropped too, and drop all."""
    os.sync()
    try:
        drop(Path(root))
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


# How the guard is started, and the reason that it leaves.

FLOOR_KIB = SSH_STOPS_KIB + 2**19
"""MemAvailable below which the load is ended: 3.5 GiB, between what the plan leaves (4 GiB, see
models/py) and where SSH stops."""

LAST_RESORT_S = 60.0
"""Seconds after its own limit at which systemd ends the guard."""

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,200}")


@dataclass(frozen=True)
class GuardSettings:
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


def start(settings: GuardSettings, search_path: str) -> list[str]:
    """Return the command that starts a guard."""
    return own_program.in_unit(
        unit(settings.server),
        own_program.argv(__name__, json.dumps(asdict(settings))),
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


# The guard itself.

LOW_FREE_KIB = 8 * 2**20
"""MemFree below which caches are dropped and memory is compacted (source: glm-dflash2-19)."""

LOOK_S = 0.1
"""Seconds between two looks. MemAvailable fell from 29 to 2.5 GiB within 9 s, and from 34 to 12.7
within 1.5 s (source: public-reports)."""

PAUSE_S = 5.0
"""Seconds after a drop before the next one, so that a load does not only read again."""

WATCH_S = 2.0
"""Seconds between two looks whether the load has ended."""

ASK_S = 20.0
"""Seconds for Docker, systemd or the server to answer."""

MLOCK_ALL = 1 | 2
"""MCL_CURRENT | MCL_FUTURE of mlockall(2)."""


def main(text: str) -> int:
    """Guard the load until it is ready, has ended, or the limit has passed."""
    settings = GuardSettings(**json.loads(text))
    with contextlib.suppress(OSError, AttributeError):  # or its code is read again from the disk
        ctypes.CDLL(None).mlockall(MLOCK_ALL)
    Guard(settings).run()
    return 0


class Guard:
    """Looks at the memory of a node while a server loads."""

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self.root = Path(settings.root)
        self._over = threading.Event()
        self._dropping = threading.Lock()

    def run(self) -> None:
        """Look, drop, and perhaps end the load; threads do what may take its time."""
        until = time.monotonic() + self.settings.limit_s
        threading.Thread(target=self._watch, daemon=True).start()
        while not self._over.wait(LOOK_S) and time.monotonic() < until:
            with contextlib.suppress(OSError):  # the next look may do
                known = meminfo(self.root)
                if known["MemAvailable"] < FLOOR_KIB:
                    self._leave_reason(known)
                    self._end_load(until)
                    return
                if known["MemFree"] < LOW_FREE_KIB and self._dropping.acquire(blocking=False):
                    threading.Thread(target=self._drop, daemon=True).start()

    def _drop(self) -> None:
        try:
            with contextlib.suppress(OSError):
                drop(self.root)
            self._over.wait(PAUSE_S)
        finally:
            self._dropping.release()

    def _leave_reason(self, known: dict[str, int]) -> None:
        """Write why the load is about to end; `up` may read it at once, and tell this to end."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        free, swap = known.get("MemFree", 0), known.get("SwapFree", 0)
        waited = pressure(self.root)
        reason = Reason(known["MemAvailable"], free, swap, waited, time.time())
        print(f"{self.settings.server} is ended: {reason}", flush=True)
        path = self._path(reason_file(self.settings.server))
        with contextlib.suppress(OSError):
            durable.put_file(path, json.dumps(asdict(reason)).encode())

    def _end_load(self, until: float) -> None:
        """End the programs; again while one runs, as for a moment no process could be started."""
        units, containers = self._units_and_containers()
        while True:
            if units:  # after the order to stop systemd starts none of them again
                _output(["systemctl", "stop", "--no-block", *units])
                _output(["systemctl", "kill", "--signal=SIGKILL", *units])
            if containers:  # neither does Docker
                _output(["docker", "stop", "-t", "0", *containers])
            if not self._running() or time.monotonic() > until:
                return
            time.sleep(LOOK_S)

    def _watch(self) -> None:
        """Set the end when the server is ready, or none of the programs runs any more."""
        health = {"url": self.settings.health, "timeout": ASK_S}
        while not self._over.is_set():
            ready = bool(self.settings.health) and judge(None, ask(health)["status"]).serves
            if ready or not self._running():
                self._over.set()
            self._over.wait(WATCH_S)

    def _running(self) -> bool:
        """Return whether a program runs, or is about to; also where that is not told."""
        units, containers = self._units_and_containers()
        if containers:
            named = f"name=^/?({'|'.join(containers)})$"
            listed = _output(["docker", "container", "ls", "--quiet", "--filter", named])
            if listed is None or listed.strip():
                return True
        shown = [_output(["systemctl", "show", "-p", "ActiveState", "--value", u]) for u in units]
        return any(state is None or state.strip() not in ("inactive", "failed") for state in shown)

    def _units_and_containers(self) -> tuple[list[str], list[str]]:
        names = self.settings.programs
        files = {name: self._path(f"{paths.SYSTEMD_UNITS}/{name}.service") for name in names}
        units = [f"{name}.service" for name, file in files.items() if file.exists()]
        return units, [name for name, file in files.items() if not file.exists()]

    def _path(self, name: str) -> Path:
        return self.root / name.lstrip("/")


def _output(argv: Sequence[str]) -> str | None:
    """Return what a command prints; None where it fails or hangs, nothing where it is not there."""
    return own_program.printed(argv, ASK_S, missing="")
