"""The nodes of a run: connected in parallel, locked, asked for their facts."""

from __future__ import annotations

import contextlib
import copy
import getpass
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Failed, SparkClusterError, Unreachable
from spark_cluster.facts import gather
from spark_cluster.facts.model import Facts
from spark_cluster.runner.events import Bus, Connected, NodeFailed
from spark_cluster.runner.parallel import in_parallel, start
from spark_cluster.runner.session import Session

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.fabric_connection import Connection
    from spark_cluster.runner.node_connection import NodeConnection
    from spark_cluster.runner.node_files import NodeFiles
    from spark_cluster.runner.transport import Target

BOOT_S = 60.0
"""Seconds that a node which answers again may take to start the rest of its services."""


def target(node: InventoryNode) -> Target:
    """Return how the transport reaches a node of the inventory."""
    from spark_cluster.runner.transport import Target

    become = node.become

    def login_password() -> str | None:
        if node.login_password is None:
            return None
        return node.login_password.read(_login_password(node.name), ask_secret())

    def password() -> str | None:
        if become.password is None:
            return login_password()  # a fresh node's user has one for both
        return become.password.read(_sudo_password(node.name), ask_secret())

    found = Target.of(node.name, node)
    return replace(found, sudo_password=password, login_password=login_password)


def ssh(node: InventoryNode) -> NodeConnection:
    """Return a connection to an inventory's node: over SSH, or on this machine itself.

    Raises:
        SparkClusterError: it was begun early, and failed.
    """
    found = target(node)
    if node.is_local:
        from spark_cluster.runner.local_connection import LocalConnection

        return LocalConnection(node.name, found.sudo_password, namespaces_of=node.namespaces_of)
    from spark_cluster.runner import head_start

    return head_start.connection(found)


@contextlib.contextmanager
def forward_to(node: InventoryNode, port: int) -> Iterator[int]:
    """Lead a port of this machine's loopback to one of a node's loopback, during the block.

    Yields:
        The port of this machine.

    Raises:
        Unreachable: there is no way to the node.
        UsageError: this machine has no program `ssh`.
    """
    if node.is_this_machine:
        yield port
    elif node.namespaces_of is not None:
        from spark_cluster.runner.namespace_forward import forward_into

        with forward_into(node.name, node.namespaces_of, port) as found:
            yield found
    else:
        from spark_cluster.runner.ssh_forward import forward

        with forward(target(node), LOOPBACK, port) as found:
            yield found


_asked: dict[str, str] = {}
_asking = threading.Lock()


def _login_password(node: str) -> str:
    return f"the login password of {node}"


def _sudo_password(node: str) -> str:
    return f"the sudo password of {node}"


def remember_password(node: str, password: str) -> None:
    """Answer with it, in this process only, where a terminal would be asked for the node's login or
    sudo password: a fresh node's user has one for both.
    """
    with _asking:
        _asked[_login_password(node)] = _asked[_sudo_password(node)] = password


def forget_passwords() -> None:
    """Ask again for every password: the one that was given is wrong, or no longer needed."""
    with _asking:
        _asked.clear()


def ask_secret() -> Callable[[str], str] | None:
    """Ask on the terminal, once for each secret; return None without a terminal."""
    if not sys.stdin.isatty():
        return None

    def ask(what: str) -> str:
        with _asking:
            if what not in _asked:
                _asked[what] = getpass.getpass(f"{what}: ")
            return _asked[what]

    return ask


class Connections:
    """Connections, agents and facts of a run's nodes.

    Args:
        nodes: of the inventory.
        bus: gets Connected and NodeFailed.
        run: id of the run.
        command: what the user asked for, told to whoever meets this run's lock.
        change: this run may change the nodes: be root there and hold their locks.
        gather_facts: ask for them at once, in the turn that takes the lock; otherwise they are
            asked for when one is first read.
        dial: makes a node's connection, not opened.
    """

    def __init__(
        self,
        nodes: Iterable[InventoryNode],
        bus: Bus,
        run: str,
        *,
        command: str,
        change: bool,
        gather_facts: bool = True,
        dial: Callable[[InventoryNode], NodeConnection] = ssh,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.bus = bus
        self.run = run
        self.command = command
        self.change = change
        self.gather_facts = gather_facts
        self.dial = dial
        self.facts: dict[str, Facts] = {}
        self.users: dict[str, str] = {}
        self._connections: dict[str, NodeConnection] = {}
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, Future[SparkClusterError | None]] = {}
        self._seconds: dict[str, float] = {}
        self._gathering = threading.Lock()
        self._closed = threading.Event()

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
        from spark_cluster.runner import head_start

        head_start.load()
        self._opening = {name: start(partial(self._open, name)) for name in self.nodes}

    def open(self) -> dict[str, SparkClusterError]:
        """Wait until all are connected; who failed, and why (the others are usable)."""
        if not self._opening:
            self.begin()
        outcomes = {name: future.result() for name, future in self._opening.items()}
        for name, seconds in self._seconds.items():
            self.bus.emit(Connected(name, seconds))
        failed = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
        for name, error in failed.items():
            unreachable = isinstance(error, Unreachable)
            self.bus.emit(NodeFailed(name, error.message, error.hint, unreachable))
        return failed

    def session(self, name: str) -> Session:
        """The agent of a connected node.

        Raises:
            Unreachable: its connection was lost.
        """
        try:
            return self._sessions[name]
        except KeyError:
            raise Unreachable("not connected", where=name) from None

    def fabric(self, name: str) -> Connection:
        """Return fabric's `Connection` to a connected node; it ends with this run.

        Raises:
            Unreachable: its connection was lost.
            Refused: the node is not reached over SSH.
        """
        if name not in self._connections:
            raise Unreachable("not connected", where=name)
        from spark_cluster.runner import fabric_connection

        return fabric_connection.over(self._connections[name], name, owned=False)

    @contextlib.contextmanager
    def files(self, name: str) -> Iterator[NodeFiles]:
        """Return the files of a connected node that its login user may read, for the block.

        Raises:
            Unreachable: its connection was lost, or the node hangs.
            Failed: it offers no SFTP.
        """
        from spark_cluster.runner import node_files
        from spark_cluster.runner.local_connection import LocalConnection

        connection = self._connections.get(name)
        if isinstance(connection, LocalConnection):
            yield node_files.LocalFiles(name, connection.files_root())
        else:
            with node_files.over(self.fabric(name)) as files:
                yield files

    def forward(self, name: str, port: int) -> AbstractContextManager[int]:
        """Lead a port of this machine's loopback to one of a node's; see `forward_to`."""
        return forward_to(self.nodes[name], port)

    def drop(self, name: str) -> None:
        """End a node's agent and connection; nothing of them is used again."""
        session = self._sessions.pop(name, None)
        connection = self._connections.pop(name, None)
        if session is not None:
            with contextlib.suppress(SparkClusterError, OSError):
                session.close()
        if connection is not None:
            connection.close()

    def reconnect(self, name: str, booted_before: str = "") -> bool:
        """Connect again to a node that was there; False while it is still in the previous boot.

        Raises:
            SparkClusterError: it does not answer, or its agent does not start (yet).
        """
        self.drop(name)
        session = self._join(name)
        if not booted_before:
            return True
        answer = session.request("gather", files={"boot_id": gather.FILES["boot_id"]})
        if (answer["files"]["boot_id"] or "").strip() == booted_before:
            return False
        with contextlib.suppress(Failed):  # a unit that hangs must not hold up the run
            session.run(["systemctl", "is-system-running", "--wait"], timeout=BOOT_S)
        return True

    def enter(self, name: str) -> None:
        """Take the node's lock, when this run changes nodes, and ask for its facts if they are
        wanted at once, or are known from before it was lost.

        Raises:
            Failed: another run holds the lock.
            Unreachable: an agent of this run, that has not yet noticed its end, holds it.
        """
        session = self._sessions[name]
        lock = session.submit("lock", owner=self._owner()) if self.change else None
        wanted = gather.question() if self.gather_facts or name in self.facts else {}
        gathered = session.submit("gather", **wanted)
        held_by = lock.wait().get("locked_by") if lock is not None else None
        if held_by is not None:
            if held_by.get("run") == self.run:
                raise Unreachable("the previous agent is still running", where=name)
            raise _locked(name, held_by)
        answer = gathered.wait()
        if wanted:
            self.facts[name] = gather.facts(answer)
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

    def announce_host_keys(self, name: str) -> tuple[Path, list[str]]:
        """Write the host keys that a node has ready into known_hosts, next to those of now.

        They come over a connection whose host key was verified: no one else can have sent them.

        Returns:
            The file, and the new keys' fingerprints; none when it has none ready, or is reached
            without SSH.

        Raises:
            Failed: the file cannot be written.
        """
        from spark_cluster.facts.parsers import public_keys
        from spark_cluster.resources.host_keys import PREPARED
        from spark_cluster.runner import host_key_change

        if self.nodes[name].is_local:
            return Path(), []
        answer = self._sessions[name].request("gather", trees={"next": f"{PREPARED}/*/key.pub"})
        keys = public_keys(answer["trees"]["next"].values())
        wanted = target(self.nodes[name])
        return host_key_change.announce(wanted, keys, self.facts_of(name).host_keys)

    def verify_host_keys(self, name: str) -> bool:
        """Connect once more, and when the new host keys are shown, remove those they replace.

        Returns:
            Whether any were removed.

        Raises:
            SparkClusterError: the node does not let one in, or known_hosts cannot be written.
        """
        connection = self.dial(self.nodes[name])
        try:
            return self._forget_replaced(name, connection)
        finally:
            connection.close()

    def forget_replaced_host_keys(self, name: str) -> bool:
        """The same over the connection of this run, for what one that was cut has left."""
        return self._forget_replaced(name, self._connections[name])

    def _forget_replaced(self, name: str, connection: NodeConnection) -> bool:
        from spark_cluster.facts.parsers import public_keys
        from spark_cluster.runner import host_key_change

        wanted, shown = target(self.nodes[name]), connection.host_key()
        if shown is None or not host_key_change.is_under_way(wanted):
            return False
        trees = {"keys": gather.TREES["host_keys"]}
        answer = self._sessions[name].request("gather", trees=trees)
        current = public_keys(answer["trees"]["keys"].values())
        return bool(host_key_change.forget_replaced(wanted, shown, current))

    def verify_new_login(self, name: str, path: str) -> None:
        """Leave a file on a node over a new connection, as a proof that it still lets one in.

        It goes on in the background; that it did not work is for the node to say.
        """

        def leave() -> None:
            connection = self.dial(self.nodes[name])
            try:
                session = connection.session(self.run)
                session.run(["touch", path])
                session.close()
            finally:
                connection.close()

        start(leave)

    def refresh(self, names: Iterable[str]) -> dict[str, SparkClusterError]:
        """Ask again for facts that a change may have made stale; who did not answer, and why."""
        jobs = {name: partial(self._facts, name) for name in names}
        failed: dict[str, SparkClusterError] = {}
        for name, outcome in (in_parallel(jobs) if jobs else {}).items():
            if isinstance(outcome, SparkClusterError):
                failed[name] = outcome
            else:
                self.facts[name] = outcome
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
        session = self._sessions.get(name)
        if session is None:
            raise Unreachable("it is not connected", where=name)
        return gather.facts(session.request("gather", **gather.question()))

    def _open(self, name: str) -> None:
        started = time.monotonic()
        self._join(name)
        self.enter(name)
        self._seconds[name] = time.monotonic() - started

    def _join(self, name: str) -> Session:
        """An agent over a connection of its own."""
        connection = self.dial(self.nodes[name])
        self._connections[name] = connection
        self._sessions[name] = connection.session(self.run, become=True)
        return self._sessions[name]

    def _owner(self) -> dict[str, object]:
        return {
            "run": self.run,
            "command": self.command,
            "user": f"{getpass.getuser()}@{platform.node()}",
            "laptop_pid": os.getpid(),
            "since": time.time(),
        }


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
