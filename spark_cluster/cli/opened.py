"""An open inventory and its selected nodes, where each operation starts; who watches its runs."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from spark_cluster.config.extension import Allowances, Prompts
from spark_cluster.errors import Failed, Interrupted, SparkClusterError, UsageError
from spark_cluster.runner.events import Event, Options, RunFinished, Sink

if TYPE_CHECKING:
    from concurrent.futures import Future

    from spark_cluster.cli.run import Run
    from spark_cluster.config.discovery import Peer
    from spark_cluster.config.inventory import Inventory, InventoryNode
    from spark_cluster.config.project import Project
    from spark_cluster.config.secret import SecretReference
    from spark_cluster.runner.dialer import Dialer

    Watch = Callable[[Run], Sink]
    """Is given a run before it connects, and returns a sink for its events."""

T = TypeVar("T")

USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
"""Private keys of ~/.ssh that are looked for, the best one first."""

_SUDO = '[ "$(id -u)" = 0 ] || exec sudo -n true'
"""For sh: succeeds where the login user needs no password for sudo."""

END_S = 120.0
"""Seconds in which a cancelled operation must have ended. Connections are closed at once; a
connection that is just being made takes at most the inventory's `connect_timeout_s`."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Have `watch` see each run that this thread begins in the block, in place of any other."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


class Opened:
    """An inventory, the project that it is used in, and a selection of its nodes.

    Files are read when they are first asked for, so that making one costs nothing and raises
    nothing.

    Args:
        inventory: a file, the name of one in `inventories/`, or the nodes' addresses, the head
            first (`192.168.1.10` or `user@spark-1.local`); by default the project's own
            `inventory.yaml`.
        project: the project folder; by default the current one.
        limit: only these nodes or groups, such as `spark*,!spark2`.
        port: of the endpoint instead of the inventory's.
        started: when the time of its runs began, seconds on the monotonic clock; by default each
            begins with its run.
    """

    def __init__(
        self,
        inventory: str | Path | Sequence[str] | None = None,
        *,
        project: str | Path | None = None,
        limit: str = "all",
        port: int | None = None,
        started: float | None = None,
    ) -> None:
        self.named, self.named_project = inventory, project
        self.limit = limit
        self.port = port
        self.prompts = Prompts()
        self._folder = Path(project or ".").absolute()
        self._started = started
        self._closed = False
        self._runs: set[Run] = set()

    @cached_property
    def project(self) -> Project:
        """The user's project folder and what is shipped.

        Raises:
            UsageError: there is no such folder.
        """
        from spark_cluster.config.project import Project

        return Project(self._folder.resolve())

    def in_use(self) -> AbstractContextManager[None]:
        """Have the project in use in a block, as each run does: its own resources, known issues and
        checks count there.

        Raises:
            Refused, InvalidFile: as `load_extensions`.
        """
        self.load_extensions()
        return self.project.in_use()

    @cached_property
    def dialer(self) -> Dialer:
        """The owner of the connections to the nodes, and of the passwords that were asked for."""
        from spark_cluster.runner.dialer import Dialer

        return Dialer(self.prompts)

    @property
    def inventory_is_missing(self) -> bool:
        """True if none is named and the project has none, which some commands can do without."""
        from spark_cluster.config.project import INVENTORY

        return self.named is None and not (self.project.folder / INVENTORY).exists()

    @cached_property
    def _checked(self) -> Inventory:
        from spark_cluster.config.inventory import checked

        if self.named is None or isinstance(self.named, str | Path):
            source = self.project.inventory_source(self.named)
        else:
            from spark_cluster.config.discovery import source_of

            source = source_of(self.named)
        return replace(checked(source, self.project.list("roles")), prompts=self.prompts)

    @property
    def inventory(self) -> Inventory:
        """The inventory, read and checked.

        Raises:
            InvalidFile: it does not exist or is wrong, with every problem and its line.
            UsageError: there is no inventory of that name.
            Refused: others can write it.
        """
        return self._checked if self.port is None else self._checked.with_port(self.port)

    def read_again(self) -> None:
        """Forget the inventory that was read: its file has changed."""
        self.__dict__.pop("_checked", None)

    @property
    def nodes(self) -> list[InventoryNode]:
        """The nodes that `limit` selects.

        Raises:
            SparkClusterError: as `inventory`.
            UsageError: the pattern names something unknown, or selects no node; or it is closed.
        """
        if self._closed:
            raise UsageError("this Cluster is closed", hint="make a new one of the same inventory")
        return self.inventory.select(self.limit)

    def allowances(self, named: Allowances) -> Allowances:
        """Return what recipes are allowed: by the inventory, and by what is named here."""

        if self.inventory_is_missing:
            return named
        serve = self.inventory.serve
        known = Allowances(
            tuple(serve.allow_files),
            tuple(serve.allow_env),
            tuple(serve.allow_mounts),
            serve.allow_venv,
            serve.allow_build,
            serve.allow_build_network,
            self.inventory.own_folders,
        )
        return known + named

    def load_extensions(self) -> None:
        """Check what the project brings of its own, before anything is connected: its resources
        are part of what agents get, its known issues may be wanted when something has failed.

        Raises:
            Refused: others can write them.
            InvalidFile: one of them is wrong, with the place.
        """
        from spark_cluster.config.extension import KNOWN_ISSUES

        self.project.load_resources()
        if self.project.extensions.files(KNOWN_ISSUES, ".toml"):
            from spark_cluster.issues.entries import own

            with self.project.in_use():
                own()

    def close(self) -> None:
        """End the runs of other threads as Ctrl-C does, with their connections; begin no more."""
        self._closed = True
        for run in list(self._runs):
            run.cancel()

    @contextlib.contextmanager
    def play(
        self,
        command: str,
        nodes: Sequence[InventoryNode],
        options: Options | None = None,
        *,
        change: bool = True,
        gather_facts: bool = True,
        run_id: str = "",
    ) -> Iterator[Run]:
        """A run over nodes: connected, watched, recorded, ended in order whatever happens.

        Args:
            options: check mode, diffs, a selection of roles.
            change: it may change nodes.
            gather_facts: at once; otherwise when one is first read.
            run_id: by default a new one.

        Raises:
            Interrupted: on Ctrl-C, or when it was cancelled.
            SparkClusterError: no node could be reached, or what the body raises.
        """
        from spark_cluster.cli.run import Run, ended

        with self.in_use():
            run = Run(
                self.inventory,
                self.project,
                self.dialer,
                command,
                nodes,
                options or Options(),
                run_id=run_id or new_run(),
                change=change,
                gather_facts=gather_facts,
                started=time.monotonic() if self._started is None else self._started,
                watch=_watch.get(),
            )
            with ended(run):
                self._runs.add(run)
                try:
                    yield run
                finally:
                    self._runs.discard(run)
                    self.prompts.around = contextlib.nullcontext  # its display has ended


def new_run() -> str:
    """Return the id of a run, which sorts by time, within a second too: `20261120-141502-3fa9`."""
    now = time.time()
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + f"{int(now % 1 * 0x10000):04x}"


def head_must_be_selected(opened: Opened, hint: str = "") -> None:
    """Look whether the head, which serves, is among the selected nodes.

    Raises:
        UsageError: it is not.
    """
    if not any(node.is_head for node in opened.nodes):
        head = opened.inventory.head.name
        raise UsageError(
            f"--limit {opened.limit} leaves out the head, which serves",
            hint=f"the head is {head}{hint}",
        )


# -- the events of an operation as an iterator, while it goes on in a thread -----------------------


class EventStream(Generic[T]):
    """The events of an operation, one by one, and then its result. Made by `Cluster.events`.

    The operation begins with the block or the first event, and goes on whether or not its events
    are read. Leaving the block ends it as Ctrl-C does, if it has not ended, and waits for that;
    so does dropping the stream, and closing the cluster. Leaving the loop only does not end it:
    `result()` still waits for the whole of it.

    The loop and `result()` raise the operation's error. Ctrl-C in the loop is raised there; it is
    the end of the block that ends the run.
    """

    def __init__(self, operation: Callable[[], T]) -> None:
        self._work = _Work(operation)
        self._read = False
        self._drop = weakref.finalize(self, self._work.end, END_S)

    def __enter__(self) -> EventStream[T]:
        self._work.begin()
        return self

    def __exit__(self, *_error: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: the operation is over, and all of its events were read.
            SparkClusterError: the same, when it failed.
        """
        if self._read:
            raise StopIteration
        self._work.begin()
        event = self._work.events.get()
        if event is not None:
            return event
        self._read = True
        self.result()
        raise StopIteration

    def result(self) -> T:
        """Wait for the end of the operation, and return its result.

        Raises:
            Interrupted: it was cancelled before its end.
            SparkClusterError: it failed.
        """
        return self._work.outcome()

    def cancel(self) -> None:
        """End the operation as Ctrl-C does, and wait for its end; do nothing if it has ended.

        Raises:
            Failed: it has not ended within END_S seconds.
        """
        self._drop.detach()
        if not self._work.end(END_S):
            raise Failed(
                f"the run has not ended within {END_S:g} s of its cancellation",
                hint="its connections are closed, and the agents on the nodes end by themselves; "
                "end this process if it must not go on here",
            )


class _Work(Generic[T]):
    """The operation and its thread, which must not keep the stream itself alive."""

    def __init__(self, operation: Callable[[], T]) -> None:
        self.events: SimpleQueue[Event | None] = SimpleQueue()
        self._operation = operation
        self._lock = threading.Lock()
        self._future: Future[T | SparkClusterError] | None = None
        self._thread: threading.Thread | None = None
        self._run: Run | None = None
        self._cancelled = False

    def begin(self) -> Future[T | SparkClusterError]:
        """Begin once; one that was cancelled before only says so."""
        with self._lock:
            if self._future is None:
                from spark_cluster.runner.parallel import start

                self._future = start(self._go)
            return self._future

    def outcome(self) -> T:
        """Wait for its end."""
        found = self.begin().result()
        if isinstance(found, SparkClusterError):
            raise found
        return found

    def end(self, within_s: float) -> bool:
        """Cancel it; return whether it has ended within so many seconds."""
        from concurrent.futures import wait

        with self._lock:
            self._cancelled = True
            run, future = self._run, self._future
        if future is None or threading.current_thread() is self._thread:
            return True
        if run is not None:
            run.cancel()
        return not wait([future], within_s).not_done

    def _go(self) -> T:
        self._thread = threading.current_thread()
        try:
            if self._cancelled:
                raise Interrupted("cancelled before it began; nothing was done")
            with watching(self._watch):
                return self._operation()
        finally:
            self.events.put(None)

    def _watch(self, run: Run) -> _Work[T]:
        with self._lock:
            self._run = run
            if self._cancelled:
                raise KeyboardInterrupt
        return self

    def take(self, event: Event) -> None:
        """Hand an event on; where it was cancelled, end the run's own thread as Ctrl-C does."""
        self.events.put(event)
        own = threading.current_thread() is self._thread
        if self._cancelled and own and not isinstance(event, RunFinished):
            raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing is open."""


# -- the first login to trusted nodes: which key is installed, does sudo ask, which peers ----------


@dataclass(frozen=True, slots=True)
class FirstLogin:
    """What the login user of a node is told there.

    Attributes:
        sudo_asks: sudo wants a password.
        peers: machines at the other ends of its cables.
    """

    sudo_asks: bool
    peers: tuple[Peer, ...]


def log_in(
    dialer: Dialer, nodes: Iterable[InventoryNode], password: SecretReference | None = None
) -> dict[str, FirstLogin | SparkClusterError]:
    """Log in to every node, without sudo, and ask.

    Args:
        password: offered where no key is accepted.
    """
    from spark_cluster.runner.parallel import in_parallel

    wanted = [replace(node, login_password=password) for node in nodes]
    return in_parallel({node.name: partial(_ask, dialer, node) for node in wanted})


def _ask(dialer: Dialer, node: InventoryNode) -> FirstLogin:
    """Raises:
    Unreachable: it does not let us in; a KeysRefused where a password may.
    """
    from spark_cluster.config import discovery

    commands = {**discovery.COMMANDS, "sudo": ("sh", "-c", _SUDO)}
    with dialer.session(node, "setup", become=False) as session:
        answer = session.request("gather", commands=commands)
    sudo = answer["commands"].get("sudo")
    return FirstLogin(sudo is None or sudo["status"] != 0, tuple(discovery.peers(answer)))


def with_keys(
    nodes: Sequence[InventoryNode], password: SecretReference | None
) -> tuple[Sequence[InventoryNode], dict[str, str]]:
    """Return the nodes as they are logged in to, and by name the public keys to install there.

    Args:
        password: of a first contact, where no key is accepted yet; the user's own is installed.

    Raises:
        UsageError: it is a first contact, and the user has no key.
    """
    first_contact = password is not None
    keys = {node.name: public_key(node, search=first_contact) for node in nodes}
    if first_contact:
        if not all(keys.values()):
            raise UsageError(
                "you have no SSH key that could be installed",
                hint="ssh-keygen -t ed25519 makes one; or name one with `identity_file`",
            )
        nodes = [replace(node, login_password=password) for node in nodes]
    return nodes, {name: key for name, key in keys.items() if key}


def public_key(node: InventoryNode, *, search: bool, home: Path | None = None) -> str | None:
    """Return the line of the public key for logging in to a node; None if there is none.

    Args:
        search: without an `identity_file` in the inventory, take the usual keys of ~/.ssh;
            otherwise the node is left with the keys that it has.
    """
    private = [node.identity_file] if node.identity_file is not None else []
    if not private and search:
        private = [(home or Path.home()) / ".ssh" / name for name in USUAL_KEYS]
    for path in private:
        public = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
        if public.is_file():
            return public.read_text(encoding="utf-8", errors="replace").strip()
    return None
