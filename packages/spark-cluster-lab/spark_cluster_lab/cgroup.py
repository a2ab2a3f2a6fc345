"""The control group of a node: the list of everything that runs in it, and the way to end it all.

Machines have one cgroup tree (version 2) or several (version 1 and hybrid); the node is in a group
of the same name in each that counts. Without a group of its own, both nodes' systemds would share
the one that nspawn makes and see each other's processes.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

TREE = Path("/sys/fs/cgroup")
HYBRID = ("unified", "systemd", "pids")


def trees() -> list[Path]:
    """Return where control groups are created on this machine."""
    if (TREE / "cgroup.procs").exists():
        return [TREE]
    return [TREE / name for name in HYBRID if (TREE / name / "cgroup.procs").exists()]


def groups(name: str) -> list[Path]:
    """A node's groups; `name` is `NodeLayout.group`."""
    return [tree / f"spark-cluster-{name}" for tree in trees()]


def join(name: str) -> None:
    """Put this process, and so what it starts, into a node's group."""
    for group in groups(name):
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(os.getpid()))


def leave() -> None:
    """Put this process back into the machine's own group."""
    for tree in trees():
        (tree / "cgroup.procs").write_text(str(os.getpid()))


def processes(name: str) -> set[int]:
    """Every process of a node, by the machine's numbers (its supervisor is one of them)."""
    found: set[int] = set()
    for group in groups(name):
        for folder, _, _ in os.walk(group):  # a glob would stumble over groups that go away
            try:
                found.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
            except OSError:
                continue  # the group went away, or is threaded
    return found - {0}


def freeze(name: str, timeout: float = 10.0) -> None:
    """Stop every process of a node where it is; what cannot be stopped in time runs on."""
    found = [group for group in groups(name) if (group / "cgroup.freeze").exists()]
    for group in found:
        (group / "cgroup.freeze").write_text("1")
    deadline = time.monotonic() + timeout
    while not all("frozen 1" in (group / "cgroup.events").read_text() for group in found):
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def kill(name: str, timeout: float = 10.0) -> None:
    """End every process of a node by force and wait until they are gone."""
    deadline = time.monotonic() + timeout
    while (left := processes(name)) and time.monotonic() < deadline:
        for pid in left - {os.getpid()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def remove(name: str, timeout: float = 5.0) -> None:
    """Delete a node's groups; the kernel may take a moment to see that they are empty."""
    deadline = time.monotonic() + timeout
    for group in groups(name):
        while group.exists():
            try:
                for path in sorted(group.glob("**/"), reverse=True):  # a group's own groups first
                    path.rmdir()
            except FileNotFoundError:
                continue  # its supervisor is doing the same
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
