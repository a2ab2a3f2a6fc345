"""The lab of GPUs as a whole: up, down, status. Whatever state it was left in is recognised."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spark_cluster.errors import Failed, Unreachable, UsageError
from spark_cluster.node import durable
from spark_cluster_lab import cgroup, power
from spark_cluster_lab.artefact import clear
from spark_cluster_lab.documents import GpuLabStatus, GpuNodeStatus
from spark_cluster_lab.gpu import devices, mounts, network, owner, requirements
from spark_cluster_lab.gpu.description import (
    Description,
    asked_differently,
    changed_since,
    read,
)
from spark_cluster_lab.gpu.inventory import inventory
from spark_cluster_lab.gpu.layout import (
    BRIDGE,
    FABRIC_BRIDGE,
    MAX_NODES,
    STATE_VARIABLE,
    GpuLayout,
    GpuNodeLayout,
)
from spark_cluster_lab.layout import Layout
from spark_cluster_lab.lock import LabLock
from spark_cluster_lab.machine import Progress, name_servers, require_root_on_linux
from spark_cluster_lab.namespaces import enter
from spark_cluster_lab.network import links, namespaces
from spark_cluster_lab.shell import run

SUPERVISOR = [power.SUPERVISOR[0], "-m", "spark_cluster_lab.gpu.supervisor"]
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
        self._lock = LabLock(owner.lock())

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
        """`up`, `partly up` (a node is off), `down`, or `broken` (to be cleaned away).

        Where the machine has the lab of another folder, this one's is down.
        """
        if owner.other(self.layout.state):
            return "down"
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
            UsageError: this machine cannot have them, or other nodes are running.
            Failed: a node did not come up.
        """
        requirements.require()
        chosen = devices.assign(devices.gpus()[:MAX_NODES], nodes, share=share_gpu)
        with self._lock.held(progress):
            self._require_machine()
            wanted = self._describe(chosen, shares)
            state = self.state()
            if state in ("up", "partly up") and not fresh:
                self._require_same(wanted, progress)
            if state == "up" and not fresh:
                return self._finish(len(wanted))
            if state == "broken":
                progress("cleaning up after a lab that did not end in order")
            if state == "broken" or (fresh and state != "down"):
                self.down(progress=progress)
            if wanted[0].in_memory:
                kind = "a file system that overlayfs cannot write to"
                progress(f"what nodes write is kept in memory: {self.layout.state} is on {kind}")
            self._switch_on(wanted, fresh=fresh, progress=progress)
            return True

    def _require_machine(self) -> None:
        """Raises:
        UsageError: the machine has the lab of another folder, whose networks have these names.
        """
        other = owner.other(self.layout.state)
        if other is None:
            return
        state = GpuLab(GpuLayout(other)).state()
        if state != "down":
            raise UsageError(
                f"the lab of GPUs in {other} is {state}, and a machine has one at a time; "
                f"{self.layout.state} is asked for",
                hint=f"{STATE_VARIABLE}={other} spark-cluster lab down --gpus",
            )
        owner.release()

    def _require_same(self, wanted: Sequence[Description], progress: Progress) -> None:
        """Raises:
        UsageError: the nodes that run are not those that the user asks for.
        """
        there = [read(node.description) for node in self.nodes]
        if differences := asked_differently(there, wanted):
            raise UsageError(
                f"the lab of GPUs is running, and its nodes are left as they are: "
                f"{'; '.join(differences)}",
                hint="spark-cluster lab down --gpus first, which keeps what the nodes have "
                "written; or --fresh, which discards it",
            )
        if changes := changed_since(there, wanted):
            progress(
                f"changed on this machine since the nodes were started: {', '.join(changes)}; "
                "they see it after `lab down --gpus` and `lab up --gpus`"
            )

    def _switch_on(self, wanted: list[Description], *, fresh: bool, progress: Progress) -> None:
        """Boot the nodes that are off."""
        layouts = self.layout.nodes(len(wanted))
        off = [pair for pair in zip(layouts, wanted, strict=True) if power.state(pair[0]) == "off"]
        network.require_names(node for node, _ in off)
        if BRIDGE not in links():
            network.require_free(network.routes())
        owner.claim(self.layout.state)
        if BRIDGE not in links():
            network.raise_bridges(self.layout)
        before = {}
        for node, described in off:
            if fresh:
                wipe(node)
            described.write(node)
            before[node] = len(console(node))
            power.start(node, [*SUPERVISOR, str(node.state), str(node.number)])
        self._finish(len(wanted))
        for node, begin in before.items():
            for line in console(node)[begin:].splitlines():
                if mounts.NOT_SHOWN in line:
                    progress(f"{node.name}: {line}")

    def _finish(self, count: int) -> bool:
        """Wait for the nodes, and have their inventory; returns whether it was not there."""
        layouts = self.layout.nodes(count)
        text = inventory(layouts)
        path = self.layout.inventory
        new = not path.exists() or path.read_text(errors="replace") != text
        if new:
            durable.write_file(path, text.encode(), 0o644)
        with ThreadPoolExecutor(MAX_NODES) as pool:
            list(pool.map(wait, layouts))
        return new

    def _describe(self, chosen: Sequence[devices.Gpu], shares: Sequence[Path]) -> list[Description]:
        machine = mounts.parse(os.fsdecode(Path("/proc/self/mountinfo").read_bytes()))
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
        if not self.layout.state.exists() and owner.recorded() != self.layout.state.resolve():
            return False
        with self._lock.held(progress):
            if other := owner.other(self.layout.state):
                progress(f"the lab of GPUs in {other} is left alone: {STATE_VARIABLE} names it")
                for node in self.layout.nodes() if wipe_disks else ():
                    wipe(node)
                return False
            there = self.state() != "down"
            layouts = self.layout.nodes()

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
            owner.release()
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
            answer = "it is off"
            break
        if node.leader.exists() and (leader := power.leader(node)):
            done = inside(leader, ["systemctl", "is-system-running"])
            answer = done or answer
            if answer in BOOTED:
                return
        time.sleep(0.05)
    raise Failed(
        f"did not come up in {time.monotonic() - begun:.0f} s ({answer}); "
        f"its console ends with: {last_words(node)}",
        where=node.name,
        hint=f"all of its console: {node.console}",
    )


def inside(leader: int, argv: Sequence[str]) -> str:
    """Run a program in a node, and return what it printed; nothing when the node has ended."""
    try:
        words = enter(leader)
    except Unreachable:
        return ""
    return run([*words, *argv], check=False, timeout=READY_S).stdout.strip()


def console(node: GpuNodeLayout) -> str:
    """Return what a node has printed since its disk was made."""
    try:
        return node.console.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def last_words(node: GpuNodeLayout) -> str:
    """Return the last line of a node's console."""
    lines = reversed(console(node).split("\n"))
    return next((line for line in lines if line.strip()), "nothing")


def _status(node: GpuNodeLayout) -> GpuNodeStatus:
    described = read(node.description)
    return GpuNodeStatus(
        name=node.name,
        address=node.address,
        state=power.state(node),
        gpu=described.gpu.name if described else "",
        uuid=described.gpu.uuid if described else "",
    )
