"""Switching one node on and off, and what there is of it meanwhile."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import spark_cluster
from spark_cluster.errors import Failed
from spark_cluster_lab import cgroup, disk, network
from spark_cluster_lab.artefact import clear, mounts_below, unmount
from spark_cluster_lab.layout import STATE_VARIABLE, Layout, NodeLayout
from spark_cluster_lab.prepare import Prepared
from spark_cluster_lab.seed import make_host_keys, seed
from spark_cluster_lab.shell import run
from spark_cluster_lab.supervisor import BINDS_FILE
from spark_cluster_lab.wheels import WHEELS

SUPERVISOR = [sys.executable, "-m", "spark_cluster_lab.supervisor"]
PACKAGES = [str(Path(file).parents[1]) for file in (__file__, spark_cluster.__file__)]
"""The folders in which a supervisor finds the lab and spark-cluster, installed or not."""

UNSAFE_DPKG = "etc/dpkg/dpkg.cfg.d/lab"
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TERM")
"""Variables of the caller that a supervisor gets, next to those of the labs; Python itself may need
the folders of libraries."""

ORDERLY = 20.0
"""Seconds a node gets to power off by itself (Docker gives its containers 10)."""

FORCED = 60.0
"""Seconds that killed processes may take to be gone; the machine may be busy."""


def supervisor(node: NodeLayout) -> int:
    """The process that keeps the node running, or 0: it holds the node's lock."""
    try:
        with node.lock.open("r") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0) or -1
    except FileNotFoundError:
        pass
    return 0


def state(node: NodeLayout) -> str:
    """running, off, or orphaned (it runs, but nothing would start it again)."""
    if supervisor(node):
        return "running"
    return "orphaned" if cgroup.processes(node.group) else "off"


def insert(
    layout: Layout,
    node: NodeLayout,
    prepared: Prepared,
    *,
    fresh: bool = False,
    own_disk: bool = False,
) -> bool:
    """Mount the node's file system, and make it first if it is not there; True if it was made.

    Args:
        own_disk: what is made has a disk of its own, whose power can be cut.
    """
    lower = f"{prepared.standins.path}:{prepared.base.path}"
    made_over = node.lower_record.read_text() if node.lower_record.exists() else ""
    new = fresh or made_over != lower
    if new:
        wipe(node)
        if own_disk:
            disk.make(node)
    disk.attach(node)
    for path in (node.upper, node.work, node.root, node.docker):
        path.mkdir(parents=True, exist_ok=True)
    if not mounts_below(node.root):
        options = f"lowerdir={lower},upperdir={node.upper},workdir={node.work}"
        run(["mount", "-t", "overlay", "spark-cluster-lab", "-o", options, node.root])
    make_host_keys(node)
    if new:
        seed(layout, node)
        node.lower_record.write_text(lower)
        if own_disk:  # dpkg has to sync there, as on a Spark
            (node.root / UNSAFE_DPKG).unlink(missing_ok=True)
            disk.sync(node)
    binds = {
        prepared.image.path: "/srv/images",
        prepared.vllm.path: "/opt/vllm",
        prepared.wheels.path: str(WHEELS),
    }
    text = "".join(f"{source}:{target}\n" for source, target in binds.items())
    (node.directory / BINDS_FILE).write_text(text)
    return new


def on(layout: Layout, node: NodeLayout, count: int) -> None:
    """Start the node's supervisor, which boots it and outlives this process."""
    start(node, [*SUPERVISOR, str(layout.state), str(node.number), str(count)])


def start(node: NodeLayout, argv: list[str]) -> None:
    """Start a program of this package as a node's supervisor."""
    node.lock.touch(0o600)
    node.powered.unlink(missing_ok=True)  # left there if this machine was switched off meanwhile
    run(["setsid", "--fork", *argv], env=supervisor_environment(), log=node.console)


def supervisor_environment() -> dict[str, str]:
    """Return the environment of a supervisor: it outlives this process, and needs no secrets."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or name.startswith(STATE_VARIABLE)
    }
    paths = [*PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def off(node: NodeLayout, *, orderly: bool = True) -> bool:
    """Switch a node off; True if it went by itself, False if it had to be forced."""
    pid = supervisor(node)
    went = True
    if pid > 0 and orderly:
        os.kill(pid, signal.SIGTERM)
        went = wait_for_end(node, ORDERLY)
    if supervisor(node) or cgroup.processes(node.group):
        went = went and not orderly
        force_off(node)
    node.powered.unlink(missing_ok=True)
    cgroup.remove(node.group)
    return went


def force_off(node: NodeLayout) -> None:
    """Pull the power plug. The supervisor goes first: it must not boot the node again."""
    pid = supervisor(node)
    if pid > 0:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    cgroup.kill(node.group)
    if not wait_for_end(node, FORCED):
        raise Failed("does not switch off", where=node.name)


def cut(node: NodeLayout) -> None:
    """Cut the power of a node with a disk of its own: what it has not synced is lost."""
    cgroup.freeze(node.group)
    disk.cut(node)
    force_off(node)
    node.powered.unlink(missing_ok=True)
    cgroup.remove(node.group)
    unmount(node.root)
    disk.detach(node)


def wait_for_end(node: NodeLayout, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while supervisor(node) or cgroup.processes(node.group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def remove(node: NodeLayout) -> None:
    """Take away a switched-off node's mounts and network."""
    unmount(node.root)
    disk.detach(node)
    network.detach(node)


def wipe(node: NodeLayout) -> None:
    """Throw a node's file system and its containers away."""
    unmount(node.root)
    disk.remove(node)
    for path in (node.upper, node.work, node.docker, node.lower_record, node.console):
        clear(path)


def leader(node: NodeLayout) -> int:
    """The node's process 1, by the machine's numbers; 0 when it does not run."""
    for pid in cgroup.processes(node.group):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        numbers = line.split()[1:]
        if len(numbers) > 1 and numbers[1:] == ["1"]:
            return pid
    return 0
