"""Measure the cells of a benchmark one by one, on a node.

A cell that has its `cells/ID.json` is done and is not measured again, so after a cut, a crash or a
reboot the cell in progress alone is lost. `FOLDER/stop` ends it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DONE, STOPPED, NO_SERVER, NO_SPACE, BUSY = 0, 3, 4, 5, 6
"""Exit statuses: all cells have a result, somebody stopped it, ..."""

COMPLETE = "complete"
"""File that is there when every cell has a result."""

SPACE_BYTES = 64 * 1024 * 1024
"""With less free space no cell is begun: what it wrote would be lost."""

HEALTH_S = 60.0
"""Seconds in which the server must answer before a cell."""

LOST_S = 5.0
"""Seconds in which it must answer after a cell; otherwise the cell is not to blame."""

GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL of a load generator."""

LOG_BYTES = 1024 * 1024
"""Of what a load generator prints, the first MiB is kept."""


class Ended(Exception):
    """The work ends before its last cell; `status` is the exit status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def measure_all(folder: Path, plan: dict[str, Any]) -> None:
    """Measure the cells of a plan that have no result yet.

    Raises:
        Ended: the work ends before its last cell.
    """
    cells = plan["cells"]
    prepare(folder, plan)
    for number, cell in enumerate(cells, 1):
        done = folder / "cells" / f"{cell['id']}.json"
        if done.exists():
            continue
        may_begin(folder, plan["health"])
        print(f"cell {number} of {len(cells)}: {cell['id']}", flush=True)
        result = measure(folder, cell)
        must_still_serve(folder, plan["health"], cell["id"])
        keep(folder, cell["id"], result)
        how = "ok" if result["status"] == 0 else result["error"] or f"status {result['status']}"
        print(f"cell {number} of {len(cells)}: {cell['id']}: {how}", flush=True)
    write_durably(folder / COMPLETE, "")


def prepare(folder: Path, plan: dict[str, Any]) -> None:
    """Make the folders for results, and the links that load generators find things by."""
    for name in ("cells", "raw"):
        (folder / name).mkdir(exist_ok=True)
    for name, target in plan.get("links", {}).items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def must_still_serve(folder: Path, health: list[str], cell: str) -> None:
    """Raise Ended when a server was lost in a cell for the first time."""
    if _silent(health, LOST_S) and _is_first_loss(folder, cell):
        raise Ended(NO_SERVER, f"the server ended in cell {cell}; it is measured again")


def keep(folder: Path, cell: str, result: dict[str, Any]) -> None:
    """Make a cell's result durable, its raw files first.

    Raises:
        Ended: it failed, and the disk is full: the cell is not to blame, and has no result.
    """
    if result["status"] != 0:
        _need_space(folder)
    _sync(folder / "raw", cell)
    write_durably(folder / "cells" / f"{cell}.json", json.dumps(result))


def may_begin(folder: Path, health: list[str]) -> None:
    """Raise Ended when a cell cannot be measured now."""
    if (folder / "stop").exists():
        raise Ended(STOPPED, "stopped")
    _need_space(folder)
    if url := _silent(health, HEALTH_S):
        raise Ended(NO_SERVER, f"the server does not answer at {url}")


def _need_space(folder: Path) -> None:
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < SPACE_BYTES:
        raise Ended(NO_SPACE, f"less than {SPACE_BYTES >> 20} MiB are free below {folder}")


def _silent(urls: list[str], seconds: float) -> str:
    """Return a server that does not answer within so many seconds; empty as soon as all have."""
    limit = time.monotonic() + seconds
    for url in urls:
        while not _healthy(url):
            if time.monotonic() > limit:
                return url
            time.sleep(0.5)
    return ""


def _is_first_loss(folder: Path, cell: str) -> bool:
    """Return False when a cell loses its server again: then the cell is what ends it."""
    lost = folder / "raw" / f"{cell}.lost"
    is_first = not lost.exists()
    lost.touch()
    return is_first


def _sync(folder: Path, cell: str) -> None:
    """Have what a load generator wrote on the disk before the cell counts as done."""
    for path in (*folder.glob(f"{glob.escape(cell)}.*"), folder):
        with _opened(path) as handle:
            os.fsync(handle)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def measure(folder: Path, cell: dict[str, Any]) -> dict[str, Any]:
    """Run a cell's load generator to its end.

    Args:
        cell: `id`, `argv`, `env` (in addition to the own), `result` (the file that it writes),
            `timeout_s`.

    Returns:
        Its exit status (None when it was ended), why, and when; times are UNIX seconds.

    Raises:
        Ended: somebody stopped the run; the cell has no result.
    """
    started = time.time()
    log = folder / "raw" / f"{cell['id']}.log"
    result = folder / cell["result"]
    result.unlink(missing_ok=True)
    with log.open("wb") as out, _end_held_back() as may_end:
        process = subprocess.Popen(
            cell["argv"],
            cwd=folder,
            env={**os.environ, **cell.get("env", {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            may_end()
            error = _wait(folder, process, log, cell["timeout_s"])
        finally:
            _kill(process)
    _shorten(log)
    status = None if error else process.returncode
    return {"status": status, "error": error, "started": started, "finished": time.time()}


@contextlib.contextmanager
def _end_held_back() -> Iterator[Callable[[], None]]:
    """Hold SIGTERM back while a process is started: an exit in the middle leaves it behind.

    Yields:
        What lets it come again, and gives it if it has come meanwhile.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))

    def may_end() -> None:
        signal.signal(signal.SIGTERM, before)
        if came:
            signal.raise_signal(came.pop())

    try:
        yield may_end
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(folder: Path, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> str:
    """Wait for the end of a process; returns why it must be ended, "" when it ended by itself."""
    limit = time.monotonic() + timeout_s
    while process.poll() is None:
        if (folder / "stop").exists():
            raise Ended(STOPPED, "stopped")
        if time.monotonic() > limit:
            return f"it did not end within {timeout_s:g} s"
        if log.stat().st_size > 64 * LOG_BYTES:
            return "it prints without end"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started."""
    for number, grace in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        limit = time.monotonic() + grace
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
    process.wait()


def _shorten(log: Path) -> None:
    if log.stat().st_size > LOG_BYTES:
        os.truncate(log, LOG_BYTES)


def write_durably(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    with _opened(path.parent) as handle:
        os.fsync(handle)
