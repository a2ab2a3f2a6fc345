"""Supervisor of a node with a GPU: `python -m spark_cluster_lab.gpu.supervisor STATE NUMBER`.

As the ordinary lab's, but the node is made of namespaces (boot.py) instead of systemd-nspawn:
it must see the driver, its libraries and one GPU of this machine.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from spark_cluster_lab import power
from spark_cluster_lab.gpu import network
from spark_cluster_lab.gpu.description import read
from spark_cluster_lab.gpu.layout import GpuLayout, GpuNodeLayout
from spark_cluster_lab.supervisor import Supervisor

BOOT = [sys.executable, "-m", "spark_cluster_lab.gpu.boot"]
REBOOTED = -signal.SIGHUP
"""How a process 1 that reboots ends, as the kernel ends it in a PID namespace (reboot(2))."""

POWER_OFF = signal.SIGRTMIN + 4
"""systemd's signal for poweroff.target."""

AGAIN_S = 1.0
"""Seconds after which a power-off is asked for again: before it is systemd, process 1 is deaf."""


def command(node: GpuNodeLayout, terminal: str) -> list[str]:
    """Return the command that boots a node, in its network namespace."""
    words = [*BOOT, str(node.state), str(node.number), terminal]
    return ["nsenter", f"--net=/run/netns/{node.name}", "--", *words]


class GpuSupervisor(Supervisor):
    """The power supply of a node with a GPU."""

    def __init__(self, node: GpuNodeLayout) -> None:
        super().__init__(node, REBOOTED)
        self.layout = node

    def attach(self) -> None:
        described = read(self.layout.description)
        network.attach(self.layout, way_out=described is not None and described.way_out)

    def start(self) -> subprocess.Popen[bytes]:
        ours, nodes_end = os.openpty()
        machine = subprocess.Popen(
            command(self.layout, os.ttyname(nodes_end)), stdin=subprocess.DEVNULL
        )
        reader = threading.Thread(target=self._watch, args=(machine, ours, nodes_end), daemon=True)
        reader.start()
        return machine

    def power_off(self) -> None:
        if leader := power.leader(self.layout):
            with suppress(ProcessLookupError):
                os.kill(leader, POWER_OFF)

    def power(self, on: bool) -> None:
        self.layout.leader.unlink(missing_ok=True)
        if on:
            self.layout.powered.touch()
        else:
            self.layout.powered.unlink(missing_ok=True)

    def _watch(self, machine: subprocess.Popen[bytes], ours: int, nodes_end: int) -> None:
        """Print the node's console for as long as it runs, and see that a power-off is heard."""
        while machine.returncode is None:
            if select.select([ours], [], [], AGAIN_S)[0]:
                with suppress(OSError):  # hung up, which a booting system does to its console
                    text = os.read(ours, 65536).decode(errors="replace")
                    print(text.replace("\r", ""), end="", flush=True)
            elif self.stopping:
                self.power_off()
        os.close(ours)
        os.close(nodes_end)


def main() -> None:
    """Entry point: the state directory, the node's number."""
    node = GpuLayout(Path(sys.argv[1])).nodes(int(sys.argv[2]))[-1]
    GpuSupervisor(node).hold()


if __name__ == "__main__":
    main()
