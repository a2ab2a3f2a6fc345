"""Measure the cells of a benchmark one by one: the program `measure FOLDER`, in a unit of its own.

`FOLDER/plan.json` names them. The program runs as root in folders of root. Load generators run as
the login user, who owns `raw` and `home` below it: there root follows no link. Only Docker's
client is started as root.

A cell that has its `cells/ID.json` is done and is not measured again, so after a cut, a crash or a
reboot the cell in progress alone is lost. `FOLDER/stop` ends it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from spark_cluster.node import durable, own_program, paths
from spark_cluster.node.durable import write_file
from spark_cluster.node.health import HEALTH_UNDER_LOAD_S
from spark_cluster.node.http import ask
from spark_cluster.node.processes import Cancelled, Running, TooLong, environment
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.values import ResourceError, explain

DONE, FAILED, STOPPED, NO_SERVER, NO_SPACE, BUSY = 0, 1, 3, 4, 5, 6
"""Exit statuses: all cells have a result, something else went wrong, somebody stopped it, ..."""

LOCK = f"{paths.BENCH_LOCK}/measuring"
"""Held while cells are measured, at most those of one folder on a node, which it names."""

BUSY_TEXT = "another benchmark is running on this node"

PLAN = "plan.json"
"""File with the cells, and how each is measured."""

COMPLETE = "complete"
"""File that is there when every cell has a result."""

CONTAINER = "spark-bench"
"""Name of a load generator's container."""

LABEL = "spark-cluster.bench"
"""Label by which such a container is known as ours; another one is never removed."""

CLEAR = (
    "sh", "-c",
    'command -v docker >/dev/null || exit 0\n'
    'docker container ls --all --quiet --no-trunc --filter "label=$0" |\n'
    "    xargs --no-run-if-empty docker container rm --force --volumes",
    LABEL,
)  # fmt: skip
"""Removes what a load generator in a container, or a run that was killed, has left; prints it."""

DOCKER_S = 120.0
"""Seconds for removing a container."""

SPACE_BYTES = 64 * 1024 * 1024
"""With less free space no cell is begun: what it wrote would be lost."""

HEALTH_S = 60.0
"""Seconds in which the servers must answer before a cell."""

LOST_S = 5.0
"""Seconds in which they must answer after a cell; otherwise the cell is not to blame."""

LOG_BYTES = 1024 * 1024
"""Of what a load generator prints, the first MiB is kept; of a result that it prints, all."""

ENDLESS_BYTES = 64 * LOG_BYTES
"""One that prints more than this is ended."""


class Ended(Exception):
    """The work ends before its last cell; `status` is the exit status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Stop(threading.Event):
    """Is set by SIGTERM, and for as long as a file is there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def is_set(self) -> bool:
        return super().is_set() or self._file.exists()


def main(folder: str, lock: str = LOCK) -> int:
    """Measure what is not measured yet; returns the exit status."""
    stop = Stop(Path(folder) / "stop")
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with only_one(Path(lock), folder):
            measure_all(Path(folder), stop)
    except Ended as error:
        return _end(error.status, str(error))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _end(NO_SPACE, f"no space is left below {folder}")
        return _end(FAILED, explain(error, Path("/")))
    return DONE


def _end(status: int, why: str) -> int:
    print(why, file=sys.stderr, flush=True)
    return status


@contextlib.contextmanager
def only_one(path: Path, folder: str) -> Iterator[None]:
    """Hold the lock of this node's benchmarks, which then names a folder.

    Raises:
        Ended: another one is being measured.
    """
    with closing_handle(durable.open_lock(path)) as handle:
        if not durable.take_lock(handle):
            raise Ended(BUSY, BUSY_TEXT)
        os.ftruncate(handle, 0)
        os.pwrite(handle, folder.encode(), 0)
        yield


def measure_all(folder: Path, stop: Stop) -> None:
    """Measure the cells of the plan in a folder that have no result yet.

    Raises:
        Ended: the work ends before its last cell.
    """
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    step = MeasureStep(
        folder, stop, plan["health"], _make_folders(folder, plan["user"]), plan["user"]
    )
    for number, cell in enumerate(plan["cells"], 1):
        if (folder / "cells" / f"{cell['id']}.json").exists():
            continue
        step.may_begin()
        print(f"cell {number} of {len(plan['cells'])}: {cell['id']}", flush=True)
        result = step.measure(cell)
        step.must_still_serve(cell["id"])
        step.keep(cell["id"], result)
        how = "ok" if result["status"] == 0 else result["error"] or f"status {result['status']}"
        print(f"cell {number} of {len(plan['cells'])}: {cell['id']}: {how}", flush=True)
    write_file(folder / COMPLETE, b"", 0o644)


def _make_folders(folder: Path, user: str) -> int:
    """Make what is not there yet; returns the login user's `raw`, opened."""
    (folder / "cells").mkdir(exist_ok=True)
    owner = pwd.getpwnam(user)
    for place in (folder / "raw", folder / "home"):
        place.mkdir(exist_ok=True)
        os.chown(place, owner.pw_uid, owner.pw_gid)
    return os.open(folder / "raw", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


@dataclass(frozen=True)
class MeasureStep:
    """The cells of one deployment.

    Attributes:
        health: URLs that answer with 200 while the servers are up.
        raw: the folder of what load generators write, opened.
        user: as whom they run.
    """

    folder: Path
    stop: Stop
    health: list[str]
    raw: int
    user: str

    def may_begin(self) -> None:
        """Raise Ended when a cell cannot be measured now."""
        if self.stop.is_set():
            raise Ended(STOPPED, "stopped")
        self._need_space()
        if url := self._silent(HEALTH_S):
            raise Ended(NO_SERVER, f"the server does not answer at {url}")

    def must_still_serve(self, cell: str) -> None:
        """Raise Ended when a server was lost in a cell for the first time.

        When it is lost again, the cell is what ends it.
        """
        lost = self.folder / "cells" / f"{cell}.lost"
        if self._silent(LOST_S) and not lost.exists():
            lost.touch()
            raise Ended(NO_SERVER, f"the server ended in cell {cell}; it is measured again")

    def keep(self, cell: str, result: dict[str, Any]) -> None:
        """Make a cell's result durable, its raw files first.

        Raises:
            Ended: it failed, and the disk is full: the cell is not to blame, and has no result.
        """
        if result["status"] != 0:
            self._need_space()
        for name in self._files(cell):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                handle = os.open(name, flags, dir_fd=self.raw)
            except OSError:  # a link, or gone
                continue
            with closing_handle(handle):
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    os.fsync(handle)
        os.fsync(self.raw)
        write_file(self.folder / "cells" / f"{cell}.json", json.dumps(result).encode(), 0o644)

    def measure(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Run a cell's load generator to its end, as often as it has runs; a failure ends it.

        Args:
            cell: `id`, `env`, `timeout_s` (of a run), `as_root`, and `runs`: `argv`, and `prints`,
                the file of its result where it is printed.

        Returns:
            Its exit status (None when it was ended), why, and when; times are UNIX seconds.

        Raises:
            Ended: somebody stopped the run; the cell has no result.
        """
        started, status, error = time.time(), 0, ""
        for name in self._files(cell["id"]):
            os.unlink(name, dir_fd=self.raw)
        with self._file(f"{cell['id']}.log") as file:
            log = Keeping(file, LOG_BYTES)
            for run in cell["runs"]:
                try:
                    status = self._run(cell, run, log)
                except TooLong:
                    error = f"it did not end within {cell['timeout_s']:g} s"
                except ResourceError as failure:
                    error = failure.message
                if status or error:
                    if run["prints"]:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(run["prints"], dir_fd=self.raw)
                    break
        ended = {"started": started, "finished": time.time()}
        return {"status": None if error else status, "error": error, **ended}

    def _run(self, cell: dict[str, Any], run: dict[str, Any], log: Keeping) -> int:
        # Docker's client runs programs that its user's settings name: they are root's own.
        home = "/root" if cell["as_root"] else f"{self.folder}/home"
        env = environment(**{"HOME": home, **cell["env"]})
        as_root = cell["as_root"] or pwd.getpwnam(self.user).pw_uid == os.getuid()
        printed = self._file(run["prints"]) if run["prints"] else None
        if cell["as_root"]:
            clear()
        with printed or contextlib.nullcontext():
            outputs = {1: Keeping(printed, ENDLESS_BYTES) if printed else log, 2: log}
            running = Running(
                run["argv"],
                env=env,
                timeout=cell["timeout_s"],
                cwd=str(self.folder),
                user=None if as_root else self.user,
            )
            try:
                return running.attend(lambda number, data: outputs[number].add(data), self.stop)
            except Cancelled:
                raise Ended(STOPPED, "stopped") from None
            finally:
                running.end()
                running.close()
                if cell["as_root"]:
                    clear()

    def _files(self, cell: str) -> list[str]:
        names = os.listdir(self.raw)  # noqa: PTH208  (an open folder)
        return [name for name in names if name.startswith(f"{cell}.")]

    def _file(self, name: str) -> BinaryIO:
        """Open a new file in `raw`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(name, flags, 0o644, dir_fd=self.raw), "wb")

    def _need_space(self) -> None:
        free = os.statvfs(self.folder)
        if free.f_bavail * free.f_frsize < SPACE_BYTES:
            text = f"less than {SPACE_BYTES >> 20} MiB are free below {self.folder}"
            raise Ended(NO_SPACE, text)

    def _silent(self, seconds: float) -> str:
        """Return a server that does not answer within so many seconds; empty as soon as all have.

        Raises:
            Ended: somebody stopped the run meanwhile.
        """
        limit = time.monotonic() + seconds
        for url in self.health:
            while not _healthy(url):
                if self.stop.is_set():
                    raise Ended(STOPPED, "stopped")
                if time.monotonic() > limit:
                    return url
                time.sleep(0.5)
        return ""


class Keeping:
    """Keeps the first bytes of an output."""

    def __init__(self, out: BinaryIO, most: int) -> None:
        self._out, self._most, self._count = out, most, 0

    def add(self, data: bytes) -> None:
        """Take what came.

        Raises:
            ResourceError: it was too much in all.
        """
        self._out.write(data[: max(0, self._most - self._count)])
        self._count += len(data)
        if self._count > ENDLESS_BYTES:
            raise ResourceError("it prints without end")


def clear() -> None:
    """Remove the containers of load generators; one that stays is in the way of the next."""
    own_program.printed(CLEAR, DOCKER_S)


def _healthy(url: str) -> bool:
    return bool(ask({"url": url, "timeout": HEALTH_UNDER_LOAD_S})["status"] == HTTPStatus.OK)
