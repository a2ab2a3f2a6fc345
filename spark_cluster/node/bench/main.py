"""The program that measures the cells of a benchmark: `main FOLDER`, in a unit of its own.

`FOLDER/plan.json` names the cells. It runs as the user whose folder it is, or as root where the
load generator must be root's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.node.bench import worker


def main(folder: str) -> int:
    """Measure what is not measured yet; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(worker.STOPPED))
    return measure_plan(Path(folder))


def measure_plan(folder: Path) -> int:
    """Measure what is not measured yet of the plan in a folder; returns the exit status."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    with _own_lock(folder / "lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _end(worker.BUSY, f"{folder}: another process measures these cells")
        try:
            worker.measure_all(folder, plan)
        except worker.Ended as error:
            return _end(error.status, str(error))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return _end(worker.NO_SPACE, f"no space is left below {folder}")
    return worker.DONE


def _end(status: int, why: str) -> int:
    print(why, file=sys.stderr, flush=True)
    return status


@contextlib.contextmanager
def _own_lock(path: Path) -> Iterator[int]:
    """Open a file to lock that no other user can open, and so none can hold."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.fchmod(handle, 0o600)
        yield handle
    finally:
        os.close(handle)
