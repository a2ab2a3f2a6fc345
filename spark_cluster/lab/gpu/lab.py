"""The lab of GPUs as a whole: up, down, status. Whatever state it was left in is recognised."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spark_cluster.errors import Failed, Unreachable
from spark_cluster.lab import cgroup, power
from spark_cluster.lab.artefact import clear
from spark_cluster.lab.documents import GpuLabStatus, GpuNodeStatus
from spark_cluster.lab.gpu import devices, mounts, network, requirements
from spark_cluster.lab.gpu.description import Description, read
from spark_cluster.lab.gpu.inventory import inventory
from spark_cluster.lab.gpu.layout import BRIDGE, FABRIC_BRIDGE, MAX_NODES, GpuLayout, GpuNodeLayout
from spark_cluster.lab.layout import Layout
from spark_cluster.lab.lock import LabLock
from spark_cluster.lab.machine import Progress, name_servers, require_root_on_linux
from spark_cluster.lab.network import links, namespaces
from spark_cluster.lab.shell import run
from spark_cluster.runner.namespaces import enter

SUPERVISOR = [power.SUPERVISOR[0], "-m", "spark_cluster.lab.gpu.supervisor"]
BOOTED = ("running", "degraded", "maintenance")
READY_S = 60.0
STARTS_WITHIN_S = 15.0
"""Seconds that a supervisor may take to start before a node that is off counts as failed."""


def silent(_text: str) -> None:
    """Show no progress."""


class GpuLab:
    """Nodes with a GPU of this machine each. Needs root on Linux."""

    def __init__(self, layout: GpuLayout) -> None:
        require_root_on_linux()
        self.layout = layout
        self._lock = LabLock(layout.lock)

    @classmethod
    def default(cls) -> GpuLab:
        """The lab of this machine, in its usual place."""
        return cls(GpuLayout.default())

    # --- what there is ----------------------------------------------------------------------

    @property
    def nodes(self) -> list[GpuNodeLayout]:
        """The nodes that `up` has made, on or off."""
        return [node for node in self.layout.nodes() if node.description.exists()]

    def state(self) -> str:
        """`up`, `partly up` (a node is off), `down`, or `broken` (to be cleaned away)."""
        states = [power.state(node) for node in self.layout.nodes()]
        nodes = self.nodes
        running = states.count("running")
        if "orphaned" in states or running > len(nodes):
            return "broken"
        bridges = {BRIDGE, FABRIC_BRIDGE} <= links()
        if bridges and nodes and running:
            present = namespaces()
            on = [node for node, state in zip(nodes, states, strict=False) if state == "running"]
            if not all(node.name in present for node in on):
                return "broken"
            return "up" if running == len(nodes) else "partly up"
        return "broken" if network.leftovers(self.layout.nodes()) or nodes else "down"

    def status(self) -> GpuLabStatus:
        """Return the lab's state and its nodes."""
        return GpuLabStatus(
            state=self.state(),
            nodes=[_status(node) for node in self.nodes],
            directory=str(self.layout.state),
            inventory=str(self.layout.inventory),
        )

    # --- up and down ------------------------------------------------------------------------

    def up(
        self,
        nodes: int | None = None,
        *,
        shares: Sequence[Path] = (),
        share_gpu: bool = False,
        fresh: bool = False,
        progress: Progress = silent,
    ) -> bool:
        """Bring the nodes up; returns False when they were up already.

        Args:
            nodes: how many; None: one for each GPU.
            shares: files and folders of the machine that nodes see although they are in a place
                of which nodes have their own (/tmp, /run, a file system in memory).
            share_gpu: more nodes than GPUs: they share them in turns.
            fresh: throw away what the nodes have become.

        Raises:
            UsageError: this machine cannot have them.
            Failed: a node did not come up.
        """
        requirements.require()
        chosen = devices.assign(devices.gpus()[:MAX_NODES], nodes, share=share_gpu)
        with self._lock.held(progress):
            wanted = self._describe(chosen, shares)
            state = self.state()
            same = not fresh and [read(node.description) for node in self.nodes] == wanted
            if same and state == "up":
                return False
            if state == "broken":
                progress("cleaning up after a lab that did not end in order")
            if state != "down" and not (same and state == "partly up"):
                self.down(progress=progress)
            if wanted[0].in_memory:
                kind = "a file system that overlayfs cannot write to"
                progress(f"what nodes write is kept in memory: {self.layout.state} is on {kind}")
            self._switch_on(wanted, fresh=fresh)
            return True

    def _switch_on(self, wanted: list[Description], *, fresh: bool) -> None:
        """Boot the nodes that are off."""
        if BRIDGE not in links():
            network.require_free(network.routes())
            network.raise_bridges(self.layout)
        layouts = self.layout.nodes(len(wanted))
        off = [pair for pair in zip(layouts, wanted, strict=True) if power.state(pair[0]) == "off"]
        for node, described in off:
            if fresh:
                wipe(node)
            described.write(node)
            power.start(node, [*SUPERVISOR, str(node.state), str(node.number)])
        self.layout.inventory.write_text(inventory(layouts))
        with ThreadPoolExecutor(MAX_NODES) as pool:
            list(pool.map(wait, layouts))

    def _describe(self, chosen: Sequence[devices.Gpu], shares: Sequence[Path]) -> list[Description]:
        machine = mounts.parse(Path("/proc/self/mountinfo").read_text())
        hidden = [self.layout.state, Layout.default().state]
        way_out = network.has_way_out()
        layouts = self.layout.nodes(len(chosen))
        return [
            Description(
                gpu=gpu,
                devices=tuple(devices.device_files(gpu)),
                mounts=tuple(map(str, mounts.shown(machine, hidden))),
                shares=tuple(sorted({str(path.resolve(strict=True)) for path in shares})),
                in_memory=requirements.keeps_in_memory(machine, self.layout.state),
                way_out=way_out,
                name_servers=tuple(name_servers() if way_out else ()),
                hosts={node.address: node.name for node in layouts},
                links=requirements.links(),
                libraries=tuple(requirements.libraries()),
            )
            for gpu in chosen
        ]

    def down(self, *, wipe_disks: bool = False, progress: Progress = silent) -> bool:
        """Switch everything off and leave nothing; returns False when there was nothing.

        Args:
            wipe_disks: also throw away what the nodes have become.
        """
        if not self.layout.state.exists():
            return False
        with self._lock.held(progress):
            there = self.state() != "down"
            layouts = [node for node in self.layout.nodes() if node.directory.exists()]

            def take_down(node: GpuNodeLayout) -> None:
                if not power.off(node):
                    progress(f"{node.name}: did not power off in time, forced")
                network.detach(node)
                for path in (node.description, node.leader):
                    path.unlink(missing_ok=True)
                if wipe_disks:
                    wipe(node)

            with ThreadPoolExecutor(MAX_NODES) as pool:
                list(pool.map(take_down, layouts))
            network.lower_bridges(self.layout)
            self.layout.inventory.unlink(missing_ok=True)
            self._must_be_gone()
            return there

    def _must_be_gone(self) -> None:
        nodes = self.layout.nodes()
        left = network.leftovers(nodes)
        left += [str(g) for node in nodes for g in cgroup.groups(node.group) if g.exists()]
        if left:
            raise Failed(f"the lab of GPUs left behind: {'; '.join(left)}")


def wipe(node: GpuNodeLayout) -> None:
    """Throw away what a node has written."""
    for path in (node.upper, node.work, node.console):
        clear(path)


def wait(node: GpuNodeLayout) -> None:
    """Return when the node's systemd has finished booting.

    Raises:
        Failed: it does not within `READY_S`, or it is off.
    """
    begun = time.monotonic()
    answer = "no answer of its systemd"
    while time.monotonic() < begun + READY_S:
        if power.state(node) == "off" and time.monotonic() > begun + STARTS_WITHIN_S:
            answer = f"it is off: {last_words(node)}"
            break
        if node.leader.exists() and (leader := power.leader(node)):
            done = inside(leader, ["systemctl", "is-system-running"])
            answer = done or answer
            if answer in BOOTED:
                return
        time.sleep(0.05)
    raise Failed(
        f"did not come up in {time.monotonic() - begun:.0f} s ({answer})",
        where=node.name,
        hint=f"Its console: {node.console}",
    )


def inside(leader: int, argv: Sequence[str]) -> str:
    """Run a program in a node, and return what it printed; nothing when the node has ended."""
    try:
        words = enter(leader)
    except Unreachable:
        return ""
    return run([*words, *argv], check=False, timeout=READY_S).stdout.strip()


def last_words(node: GpuNodeLayout) -> str:
    """Return the last line of a node's console."""
    try:
        lines = node.console.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return "it said nothing"
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _status(node: GpuNodeLayout) -> GpuNodeStatus:
    described = read(node.description)
    return GpuNodeStatus(
        name=node.name,
        address=node.address,
        state=power.state(node),
        gpu=described.gpu.name if described else "",
        uuid=described.gpu.uuid if described else "",
    )
