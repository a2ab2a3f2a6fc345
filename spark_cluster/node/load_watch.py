"""The program that guards a node's memory while weights load; `load_guard` starts it.

A process of its own in a transient unit, so that it neither needs the laptop nor waits for anyone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from spark_cluster.node import durable, memory, paths
from spark_cluster.node.health import judge
from spark_cluster.node.http import ask
from spark_cluster.node.load_guard import FLOOR_KIB, Reason, Settings, reason_file

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
    settings = Settings(**json.loads(text))
    with contextlib.suppress(OSError, AttributeError):  # or its code is read again from the disk
        ctypes.CDLL(None).mlockall(MLOCK_ALL)
    Guard(settings).run()
    return 0


class Guard:
    """Looks at the memory of a node while a server loads."""

    def __init__(self, settings: Settings) -> None:
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
                known = memory.meminfo(self.root)
                if known["MemAvailable"] < FLOOR_KIB:
                    self._leave_reason(known)
                    self._end_load(until)
                    return
                if known["MemFree"] < LOW_FREE_KIB and self._dropping.acquire(blocking=False):
                    threading.Thread(target=self._drop, daemon=True).start()

    def _drop(self) -> None:
        try:
            with contextlib.suppress(OSError):
                memory.drop(self.root)
            self._over.wait(PAUSE_S)
        finally:
            self._dropping.release()

    def _leave_reason(self, known: dict[str, int]) -> None:
        """Write why the load is about to end; `up` may read it at once, and tell this to end."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        free, swap = known.get("MemFree", 0), known.get("SwapFree", 0)
        waited = memory.pressure(self.root)
        reason = Reason(known["MemAvailable"], free, swap, waited, time.time())
        print(f"{self.settings.server} is ended: {reason}", flush=True)
        path = self._path(reason_file(self.settings.server))
        with contextlib.suppress(OSError):
            durable.make_folder(path.parent)
            durable.write_file(path, json.dumps(asdict(reason)).encode())

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
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=ASK_S, check=False
        )
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
