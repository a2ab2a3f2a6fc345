"""The nodes of a run: connected in parallel, locked, asked for their facts."""

from __future__ import annotations

import contextlib
import copy
import getpass
import os
import platform
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import Facts
from spark_cluster.errors import Failed, Interrupted, SparkClusterError, Unreachable
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.events import Bus, Connected, NodeFailed
from spark_cluster.runner.node_connection import NodeConnection
from spark_cluster.runner.parallel import in_parallel, start
from spark_cluster.runner.session import Session

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.ssh import Connection

BOOT_S = 60.0
"""Seconds that a node which answers again may take to start the rest of its services."""


@dataclass(eq=False)
class Connections:
    """Connections, agents and facts of a run's nodes.

    Args:
        nodes: of the inventory, by name.
        bus: gets Connected and NodeFailed.
        run: id of the run.
        command: what the user asked for, told to anyone who meets this run's lock.
        change: this run may change the nodes: be root there and hold their locks.
        gather_facts: ask for them at once, in the turn that takes the lock; otherwise they are
            asked for when one is first read.
        dialer: reaches the nodes.

    Attributes:
        facts: of the nodes that were asked for them.
        users: the login user of each connected node.
    """

    nodes: Mapping[str, InventoryNode]
    bus: Bus
    run: str
    _: KW_ONLY
    command: str
    change: bool
    gather_facts: bool = True
    dialer: Dialer = field(default_factory=Dialer)
    facts: dict[str, Facts] = field(default_factory=dict, init=False)
    users: dict[str, str] = field(default_factory=dict, init=False)
    _connections: dict[str, NodeConnection] = field(default_factory=dict, init=False)
    _sessions: dict[str, Session] = field(default_factory=dict, init=False)
    _opening: dict[str, Future[SparkClusterError | None]] = field(default_factory=dict, init=False)
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _gathering: threading.Lock = field(default_factory=threading.Lock, init=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def closing(self) -> bool:
        """True when the run is over, so that a connection that ends is not made again."""
        return self._closed.is_set()

    def part(self, names: Collection[str]) -> Connections:
        """Return the same open connections as those of some of the nodes only."""
        found = copy.copy(self)
        found.nodes = {name: node for name, node in self.nodes.items() if name in names}
        return found

    def begin(self) -> None:
        """Start to connect to all, in parallel, while the caller does something else."""
        self._opening = {name: start(partial(self._open, name)) for name in self.nodes}
        # In this thread: those of the handshakes would share the interpreter with what the caller
        # imports next, and the first packet would leave later.
        from spark_cluster.runner import ssh  # noqa: F401

    def open(self) -> dict[str, SparkClusterError]:
        """Wait until all are connected; who failed, and why (the others are usable)."""
        if not self._opening:
            self.begin()
        outcomes = {name: future.result() for name, future in self._opening.items()}
        for name, seconds in self._seconds.items():
            self.bus.emit(Connected(name, seconds))
        failed = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
        for name, error in failed.items():
            self.bus.emit(NodeFailed.of(name, error))
        return failed

    def session(self, name: str) -> Session:
        """The agent of a connected node.

        Raises:
            Unreachable: its connection was lost.
        """
        if name not in self._sessions:
            raise Unreachable("not connected", where=name)
        return self._sessions[name]

    def fabric(self, name: str) -> Connection:
        """Return fabric's `Connection` to a connected node; it ends with this run.

        Raises:
            Unreachable: its connection was lost.
            Refused: the node is not reached over SSH.
        """
        return self.connection(name).fabric(owned=False)

    def connection(self, name: str) -> NodeConnection:
        """Return the connection to a node.

        Raises:
            Unreachable: it was lost.
        """
        if name not in self._connections:
            raise Unreachable("not connected", where=name)
        return self._connections[name]

    def drop(self, name: str) -> None:
        """End a node's agent and connection; nothing of them is used again."""
        session = self._sessions.pop(name, None)
        connection = self._connections.pop(name, None)
        if session is not None:
            with contextlib.suppress(SparkClusterError, OSError):
                session.close()
        if connection is not None:
            connection.close()

    def reconnect(self, name: str, booted_before: str = "") -> None:
        """Connect again to a node that was there.

        Args:
            booted_before: id of the boot that must be over.

        Raises:
            SparkClusterError: it is still in that boot, does not answer, or its agent does not
                start (yet).
        """
        self.drop(name)
        session = self._join(name)
        if not booted_before:
            return
        answer = session.request("gather", files={"boot_id": fact_gathering.FILES["boot_id"]})
        if (answer["files"]["boot_id"] or "").strip() == booted_before:
            raise Unreachable("it has not gone down", where=name)
        with contextlib.suppress(Failed):  # a unit that hangs must not hold up the run
            session.run(["systemctl", "is-system-running", "--wait"], timeout=BOOT_S)

    def enter(self, name: str) -> None:
        """Take the node's lock, when this run changes nodes, and ask for its facts if they are
        wanted at once, or are known from before it was lost.

        Raises:
            Failed: another run holds the lock.
            Unreachable: an agent of this run, that has not yet noticed its end, holds it.
        """
        session = self._sessions[name]
        owner = {
            "run": self.run,
            "command": self.command,
            "user": f"{getpass.getuser()}@{platform.node()}",
            "laptop_pid": os.getpid(),
            "since": time.time(),
        }
        lock = session.submit("lock", owner=owner) if self.change else None
        wanted = fact_gathering.question() if self.gather_facts or name in self.facts else {}
        gathered = session.submit("gather", **wanted)
        held_by = lock.wait().get("locked_by") if lock is not None else None
        if held_by is not None:
            if held_by.get("run") == self.run:
                raise Unreachable("the previous agent is still running", where=name)
            raise _locked(name, held_by)
        answer = gathered.wait()
        if wanted:
            self.facts[name] = fact_gathering.facts(answer)
        self.users[name] = self._connections[name].user

    def facts_of(self, name: str) -> Facts:
        """Return the facts of a connected node; those of all nodes are asked for together, when
        the first one is read.

        Raises:
            SparkClusterError: the node does not answer.
        """
        with self._gathering:
            if name not in self.facts:
                failed = self.refresh([n for n in list(self._sessions) if n not in self.facts])
                if name not in self.facts:
                    raise failed.get(name) or Unreachable("it is not connected", where=name)
            return self.facts[name]

    def verify_new_login(self, name: str, path: str) -> None:
        """Leave a file on a node over a new connection, as a proof that it still lets one in.

        It goes on in the background; that it did not work is for the node to say.
        """

        def leave() -> None:
            with self.dialer.session(self.nodes[name], self.run) as session:
                session.run(["touch", path])

        start(leave)

    def refresh(self, names: Iterable[str]) -> dict[str, SparkClusterError]:
        """Ask again for facts that a change may have made stale; who did not answer, and why."""
        outcomes = in_parallel({name: partial(self._facts, name) for name in names})
        failed = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
        self.facts |= {n: o for n, o in outcomes.items() if not isinstance(o, SparkClusterError)}
        return failed

    def close(self) -> None:
        """End all agents and connections."""
        self._closed.set()
        with contextlib.suppress(SparkClusterError):
            in_parallel({name: s.close for name, s in list(self._sessions.items())})
        for connection in list(self._connections.values()):
            connection.close()
        self._sessions.clear()
        self._connections.clear()

    # -- inside ----------------------------------------------------------------------------------

    def _facts(self, name: str) -> Facts:
        return fact_gathering.facts(
            self.session(name).request("gather", **fact_gathering.question())
        )

    def _open(self, name: str) -> None:
        started = time.monotonic()
        self._join(name)
        self.enter(name)
        self._seconds[name] = time.monotonic() - started

    def _join(self, name: str) -> Session:
        """An agent over a connection of its own.

        Raises:
            Interrupted: the run ended meanwhile; nothing of them is left.
        """
        connection = self.dialer.dial(self.nodes[name])
        self._connections[name] = connection
        self._ended_with_the_run(connection)
        session = self._sessions[name] = connection.session(self.run, become=True)
        self._ended_with_the_run(session, connection)
        return session

    def _ended_with_the_run(self, *opened: Session | NodeConnection) -> None:
        """End what was opened while the run ended: `close` may not have seen it."""
        if self.closing:
            for one in opened:
                with contextlib.suppress(SparkClusterError, OSError):
                    one.close()
            raise Interrupted("the run has ended")


def _locked(name: str, owner: dict[str, object]) -> Failed:
    if not owner:
        return Failed(
            "another run is in progress there", where=name, hint="wait until it has ended"
        )
    since = time.strftime("%H:%M:%S", time.localtime(float(str(owner.get("since", 0)))))
    return Failed(
        f"another run is in progress there: {owner.get('user')} runs "
        f"`{owner.get('command')}` since {since} (run {owner.get('run')})",
        where=name,
        hint="wait until it has ended, or end it there, which releases the lock",
    )
