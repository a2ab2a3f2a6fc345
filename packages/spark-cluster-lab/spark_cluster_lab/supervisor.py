"""Supervisor of one node: `python -m spark_cluster_lab.supervisor NAME` (started by the lab).

It holds a lock for as long as it lives, gives the node a fresh network at each boot, starts it
again when it reboots, and ends when it powers off. SIGTERM: an orderly power-off.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import FrameType
from typing import IO

from spark_cluster_lab import cgroup, network
from spark_cluster_lab.layout import Layout, NodeLayout

REBOOT = 133
ASKED_S = 5.0
"""Seconds within which the lock is free for a moment, if nobody has it for good."""
BINDS_FILE = "binds"
# What would change the machine's own clock, kernel or memory; a node is no security boundary.
DROPPED = "CAP_SYS_TIME,CAP_SYS_MODULE,CAP_SYS_RAWIO"
NSPAWN_ENVIRONMENT = {
    "SYSTEMD_SECCOMP": "0",  # the machine may lack what its filter wants
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",  # a writable cgroup version 2, as on a Spark
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",  # the node's own /proc/sys/net, nothing else
}


def command(node: NodeLayout) -> list[str]:
    """Return the command that boots the node."""
    binds = (node.directory / BINDS_FILE).read_text().split()
    return [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        f"--directory={node.root}",
        f"--machine={node.name}",
        "--register=no",
        "--keep-unit",
        "--capability=all",
        f"--drop-capability={DROPPED}",
        f"--network-namespace-path=/run/netns/{node.name}",
        "--resolv-conf=off",
        "--timezone=off",
        f"--bind={node.docker}:/var/lib/docker",
        *(f"--bind-ro={bind}" for bind in binds),
    ]


class Supervisor(ABC):
    """The power supply of one node.

    Args:
        restart: exit status of the node's system when it reboots.
    """

    def __init__(self, node: NodeLayout, restart: int) -> None:
        self.node, self.restart = node, restart
        self.stopping = False
        self.machine: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def attach(self) -> None:
        """Give the node a fresh network."""

    @abstractmethod
    def start(self) -> subprocess.Popen[bytes]:
        """Boot the node."""

    @abstractmethod
    def power_off(self) -> None:
        """Ask the node's system to power off."""

    @abstractmethod
    def power(self, on: bool) -> None:
        """Note that the node has power, or none."""

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.stopping = True
        if self.machine:
            self.power_off()

    def run(self) -> None:
        cgroup.join(self.node.group)
        while not self.stopping:
            self.attach()
            self.power(True)
            self.machine = self.start()
            if self.stopping:
                self.power_off()
            status = self.machine.wait()
            print(f"-- ended with status {status}", flush=True)
            self.power(False)
            if status != self.restart:
                break
        cgroup.leave()
        cgroup.kill(self.node.group)
        cgroup.remove(self.node.group)

    def hold(self) -> None:
        """Run it, with the node's lock held and SIGTERM as an orderly power-off."""
        os.chdir("/")
        with self.node.lock.open("r+") as lock:
            take(lock)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            signal.signal(signal.SIGTERM, self.stop)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self.run()


def take(lock: IO[str]) -> None:
    """Take a node's lock for good.

    Whoever asks for the node's state holds it for a moment (`power.supervisor`).

    Raises:
        BlockingIOError: another supervisor has it.
    """
    until = time.monotonic() + ASKED_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


class SparkSupervisor(Supervisor):
    """That of a simulated Spark, which systemd-nspawn boots."""

    def __init__(self, layout: Layout, node: NodeLayout, nodes: list[NodeLayout]) -> None:
        super().__init__(node, REBOOT)
        self.layout, self.nodes = layout, nodes

    def attach(self) -> None:
        network.attach(self.node)

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **NSPAWN_ENVIRONMENT}
        return subprocess.Popen(command(self.node), env=environment, stdin=subprocess.DEVNULL)

    def power_off(self) -> None:
        if self.machine:
            self.machine.send_signal(signal.SIGTERM)

    def power(self, on: bool) -> None:
        if on:
            self.node.powered.touch()
        else:
            self.node.powered.unlink(missing_ok=True)
        network.settle(self.layout, self.nodes)


def main() -> None:
    """Entry point: the state directory, the node's number, how many nodes there are."""
    state, number, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    layout = Layout(state)
    nodes = layout.nodes(count)
    SparkSupervisor(layout, nodes[number - 1], nodes).hold()


if __name__ == "__main__":
    main()
