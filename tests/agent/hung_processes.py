"""Processes that do not end: for tests of what waits for them."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import FAR_S, until

FREEZER = Path("/sys/fs/cgroup/freezer")
"""Of cgroup version 1: SIGKILL does not take a process that is frozen there."""


@contextlib.contextmanager
def freezer() -> Iterator[Path]:
    """A cgroup whose processes are in uninterruptible sleep; thawed and removed at the end."""
    if not os.access(FREEZER, os.W_OK) or not (FREEZER / "cgroup.procs").exists():
        pytest.skip("no freezer of cgroup version 1 here, or not root")
    group = Path(tempfile.mkdtemp(prefix="spark-cluster-test-", dir=FREEZER))
    try:
        (group / "freezer.state").write_text("FROZEN")
        yield group
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "cgroup.procs").read_text(), what="the frozen processes' end")
        until(lambda: _removed(group), what="the removal of the cgroup")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def hangs_in(group: Path) -> tuple[str, ...]:
    """A command that goes to uninterruptible sleep, in which SIGKILL does not reach it."""
    return ("sh", "-c", f"echo $$ > {group}/cgroup.procs; sleep 600")


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] not in "ZX"
    return False


def limit_once(path: Path) -> str:
    """Code for an agent or a worker: the limit of its commands comes once `path` is there."""
    return (
        "import time\n"
        "from pathlib import Path\n"
        "from spark_cluster.agent import processes\n"
        "came = []\n"
        "def until(_self):\n"
        f"    if not came and Path({str(path)!r}).exists(): came.append(time.monotonic())\n"
        f"    return came[0] if came else time.monotonic() + {FAR_S}\n"
        "processes.Running.until = property(until, lambda *_: None)\n"
    )


def pid_in(path: Path) -> int:
    """The number that a command wrote into a file, once it has."""
    return int(until(lambda: path.exists() and path.read_text().strip(), what=str(path)))


def ended(pid: int) -> None:
    """Wait for a process to be gone."""
    until(lambda: not lives(pid), what=f"the end of process {pid}")


def seconds(began: float) -> float:
    return time.monotonic() - began
