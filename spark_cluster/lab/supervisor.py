"""Supervisor of one node: `python -m spark_cluster.lab.supervisor NAME` (started by the lab).

It holds a lock for as long as it lives, gives the node a fresh network at each boot, starts it
again when it reboots, and ends when it powers off. SIGTERM: an orderly power-off.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from spark_cluster.lab import cgroup, network
from spark_cluster.lab.layout import Layout, NodeLayout

REBOOT = 133
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


class Supervisor:
    """The power supply of one node."""

    def __init__(self, layout: Layout, node: NodeLayout, nodes: list[NodeLayout]) -> None:
        self.layout, self.node, self.nodes = layout, node, nodes
        self.stopping = False
        self.machine: subprocess.Popen[bytes] | None = None

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.stopping = True
        if self.machine:
            self.machine.send_signal(signal.SIGTERM)

    def run(self) -> None:
        cgroup.join(self.node.name)
        environment = {**os.environ, **NSPAWN_ENVIRONMENT}
        while not self.stopping:
            network.attach(self.node)
            self.power(True)
            self.machine = subprocess.Popen(
                command(self.node), env=environment, stdin=subprocess.DEVNULL
            )
            if self.stopping:
                self.machine.send_signal(signal.SIGTERM)
            status = self.machine.wait()
            print(f"-- ended with status {status}", flush=True)
            self.power(False)
            if status != REBOOT:
                break
        cgroup.leave()
        cgroup.kill(self.node.name)
        cgroup.remove(self.node.name)

    def power(self, on: bool) -> None:
        if on:
            self.node.powered.touch()
        else:
            self.node.powered.unlink(missing_ok=True)
        network.settle(self.layout, self.nodes)


def main() -> None:
    """Entry point: the state directory, the node's number, how many nodes there are."""
    os.chdir("/")
    state, number, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    layout = Layout(state)
    nodes = layout.nodes(count)
    node = nodes[number - 1]
    with node.lock.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        supervisor = Supervisor(layout, node, nodes)
        signal.signal(signal.SIGTERM, supervisor.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        supervisor.run()


if __name__ == "__main__":
    main()
