"""The lab as a whole: up, down, status. Whatever state it was left in is recognised."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from spark_cluster.errors import Failed, UsageError
from spark_cluster_lab import cgroup, disk, network, power
from spark_cluster_lab.artefact import mounts_below
from spark_cluster_lab.documents import LabStatus, NodeStatus
from spark_cluster_lab.layout import BRIDGE, CABLES, DEFAULT_NODES, MAX_NODES, Layout, NodeLayout
from spark_cluster_lab.lock import LabLock
from spark_cluster_lab.machine import Progress, install_missing_tools, require_root_on_linux
from spark_cluster_lab.node import LabNode
from spark_cluster_lab.prepare import Prepared, prepare
from spark_cluster_lab.seed import make_keys, remember_host_keys, write_known_hosts
from spark_cluster_lab.vllm_env import MODEL

NSPAWN_LEFTOVERS = Path("/run/systemd/nspawn/propagate")


def silent(_text: str) -> None:
    """Show no progress."""


class Lab:
    """One to four simulated Sparks on this machine, usually two. Needs root on Linux.

    >>> lab = Lab.default()          # doctest: +SKIP
    >>> lab.up()                     # doctest: +SKIP
    >>> lab.nodes[0].ssh("hostname").stdout    # doctest: +SKIP
    'spark1\\n'
    """

    def __init__(self, layout: Layout) -> None:
        require_root_on_linux()
        self.layout = layout
        self._lock = LabLock(layout.lock)

    @classmethod
    def default(cls) -> Lab:
        """The lab of this machine, in its usual place."""
        return cls(Layout.default())

    # --- what there is ----------------------------------------------------------------------

    @property
    def nodes(self) -> list[LabNode]:
        """The nodes whose file systems are mounted, on or off."""
        count = sum(1 for node in self.layout.nodes() if mounts_below(node.root))
        return [LabNode(self, number) for number in range(1, count + 1)]

    def node(self, name: str) -> LabNode:
        """The node of that name.

        Raises:
            UsageError: there is none, or the lab is down.
        """
        found = {node.name: node for node in self.nodes}
        if not found:
            raise UsageError("the lab is down", hint="spark-cluster lab up")
        if name not in found:
            raise UsageError(f"no node {name}", hint=f"there are: {', '.join(found)}")
        return found[name]

    @property
    def key_path(self) -> Path:
        """The private key that the nodes accept."""
        return self.layout.key

    @property
    def known_hosts_path(self) -> Path:
        return self.layout.known_hosts

    @property
    def model_path(self) -> Path:
        """The tiny trained model, as files on the laptop."""
        return self.layout.prepared / "models" / MODEL

    def prepared(self) -> Prepared:
        return Prepared.of(self.layout)

    def state(self) -> str:
        """`up`, `partly up` (a node is off), `down`, or `broken` (to be cleaned away)."""
        states = [power.state(node) for node in self.layout.nodes()]
        nodes = self.nodes
        if "orphaned" in states:
            return "broken"
        bridge, cables = BRIDGE in network.links(), CABLES in network.namespaces()
        if bridge and cables and nodes:
            present = {node.name for node in nodes}
            whole = present <= network.namespaces() or "off" in states[: len(nodes)]
            if not whole:
                return "broken"
            return "up" if all(node.state == "running" for node in nodes) else "partly up"
        left = network.leftovers(self.layout.nodes()) or nodes or "running" in states
        left = left or disk.leftovers(self.layout)
        return "broken" if left else "down"

    def status(self) -> LabStatus:
        """Return the lab's state, its nodes, and what is prepared."""
        prepared, why = {}, ""
        try:
            prepared = {artefact.name: artefact.ready for artefact in self.prepared().all}
        except (Failed, UsageError) as error:  # the nodes of `lab up --gpus` need none of it
            why = str(error)
        return LabStatus(
            state=self.state(),
            nodes=[NodeStatus(node.name, node.address, node.state) for node in self.nodes],
            prepared=prepared,
            not_possible=why,
            directory=str(self.layout.state),
            key=str(self.layout.key),
            known_hosts=str(self.layout.known_hosts),
        )

    # --- one at a time ----------------------------------------------------------------------

    def locked(self, progress: Progress = silent) -> AbstractContextManager[None]:
        """Lock the lab against changes by others; a second one waits."""
        return self._lock.held(progress)

    # --- up and down ------------------------------------------------------------------------

    def prepare(self, progress: Progress = silent) -> Prepared:
        """Make everything that nodes are booted from, as far as it is not there yet."""
        with self.locked(progress):
            made = prepare(self.layout, progress)
            make_keys(self.layout)
            if not self.nodes:
                for artefact in made.all:
                    artefact.drop_others()
            return made

    def up(
        self, nodes: int = DEFAULT_NODES, *, fresh: bool = False, progress: Progress = silent
    ) -> bool:
        """Bring the nodes up; returns False when they were up already.

        Args:
            nodes: how many.
            fresh: throw away what the nodes have become: they boot as fresh Sparks.

        Raises:
            Failed: a node did not come up.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise UsageError(f"the lab has 1 to {MAX_NODES} nodes, not {nodes}")
        with self.locked(progress):
            if not fresh and self.state() == "up" and len(self.nodes) == nodes:
                return False
            install_missing_tools(progress)  # before anything below calls one of them
            self._clear_the_way(nodes, progress)
            made = self.prepare(progress)
            if not self.nodes:
                network.raise_bridge(self.layout)
            layouts = self.layout.nodes(nodes)
            for node in layouts:
                running = power.state(node) == "running"
                if running and fresh:
                    power.off(node, orderly=False)
                if fresh or not running:
                    if power.insert(self.layout, node, made, fresh=fresh):
                        progress(f"{node.name}: a fresh system")
                    power.on(self.layout, node, nodes)
                remember_host_keys(node)
            write_known_hosts(self.layout, layouts)
            self._each(lambda node: node.wait())
            return True

    def _clear_the_way(self, nodes: int, progress: Progress) -> None:
        """Take down what is broken, or has another number of nodes."""
        state = self.state()
        if state == "broken":
            progress("cleaning up after a lab that did not end in order")
        if state == "broken" or (self.nodes and len(self.nodes) != nodes):
            self.down(progress=progress)

    def down(self, *, wipe: bool = False, progress: Progress = silent) -> bool:
        """Switch everything off and leave nothing; returns False when there was nothing.

        Args:
            wipe: also throw away what the nodes have become.
        """
        with self.locked(progress):
            there = self.state() != "down"
            layouts = [node for node in self.layout.nodes() if node.directory.exists()]

            def take_down(node: NodeLayout) -> None:
                if not power.off(node):
                    progress(f"{node.name}: did not power off in time, forced")
                power.remove(node)
                if wipe:
                    power.wipe(node)

            with ThreadPoolExecutor(MAX_NODES) as pool:
                list(pool.map(take_down, layouts))
            network.lower_bridge(self.layout)
            self.layout.pulled.unlink(missing_ok=True)
            for node in layouts:
                shutil.rmtree(NSPAWN_LEFTOVERS / node.name, ignore_errors=True)
            self._must_be_gone()
            return there

    def _must_be_gone(self) -> None:
        nodes = self.layout.nodes()
        left = network.leftovers(nodes) + disk.leftovers(self.layout)
        left += [f"mount {point}" for point in mounts_below(self.layout.state / "nodes")]
        left += [str(g) for node in nodes for g in cgroup.groups(node.group) if g.exists()]
        if left:
            raise Failed(f"the lab left behind: {'; '.join(left)}")

    def trust(self) -> None:
        """Write the nodes' present host keys into the lab's known_hosts."""
        for node in self.nodes:
            remember_host_keys(node.layout)
        write_known_hosts(self.layout, [node.layout for node in self.nodes])

    def _each(self, action: Callable[[LabNode], None]) -> None:
        with ThreadPoolExecutor(MAX_NODES) as pool:
            list(pool.map(action, self.nodes))
