"""The options of a run, and its events: the one way out, for display, recap, `--json` and record.

Light, because it is needed before connecting.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from spark_cluster.errors import SparkClusterError, Unreachable, UsageError

if TYPE_CHECKING:
    from spark_cluster.resources.base import Resource


# The options of a run: check mode, diffs, which resources. Light: needed before connecting.


@dataclass
class Selection:
    """The selection of a run's resources: `--tags`, `--skip-tags`, `--start-at`.

    Args:
        tags: only resources that have one of these.
        skip_tags: not the ones that have one of these.
        start_at: a role's name, or a resource's id (`File:/etc/hosts`, globs allowed); what comes
            before the first match is skipped, on each node.
    """

    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
    start_at: str = ""
    _begun: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    @property
    def partial(self) -> bool:
        """True if anything may be left out."""
        return bool(self.tags or self.skip_tags or self.start_at)

    def wants(self, node: str, role: str, resource: Resource) -> bool:
        return self._wants([node], (role, resource.id), {role, *resource.tags})

    def wants_part(self, nodes: Iterable[str], name: str) -> bool:
        """Return whether a part of a run that is no resource is to be done, by its name."""
        return self._wants(list(nodes), (name,), {name})

    def _wants(self, nodes: Sequence[str], names: Sequence[str], tags: set[str]) -> bool:
        """Return whether what has these names and tags is to be done on these nodes."""
        self._seen.update(names, tags)
        if self.start_at:
            if any(fnmatch.fnmatchcase(name, self.start_at) for name in names):
                self._begun.update(nodes)
            if not self._begun.issuperset(nodes):
                return False
        return (not self.tags or bool(tags & self.tags)) and not tags & self.skip_tags

    def unmatched(self) -> UsageError | None:
        """An error when a name that was asked for was never met in the whole run."""
        if self.start_at and not self._begun:
            return self._unknown("--start-at", self.start_at)
        for option, names in (("--tags", self.tags), ("--skip-tags", self.skip_tags)):
            for name in names - self._seen:
                return self._unknown(option, name)
        return None

    def _unknown(self, option: str, name: str) -> UsageError:
        import difflib

        close = difflib.get_close_matches(name, self._seen, n=3)
        known = f"there are: {', '.join(sorted(one for one in self._seen if ':' not in one))}"
        return UsageError(
            f"{option} {name}: nothing in this run has that name",
            hint=f"did you mean {' or '.join(close)}?" if close else known,
        )


@dataclass
class Options:
    """The options of a run.

    Args:
        check: change nothing, tell what would be changed.
        diff: with unified diffs.
        selection: `--tags`, `--skip-tags`, `--start-at`.
        step: a person is asked before each change.
        ask: how: the node and what would be changed in, `yes`, `no`, `all` or `stop` out.
        adopt: models that other tools have downloaded to a node are taken over.
        force: start also what the plan says cannot work.
        offline: neither the hub nor a registry is asked; nodes serve what they have.
        consent: how a person is asked a question with yes or no; None: there is no one to ask.
    """

    check: bool = False
    diff: bool = False
    selection: Selection = field(default_factory=Selection)
    step: bool = False
    ask: Callable[[str, dict[str, Any]], str] | None = None
    adopt: bool = False
    force: bool = False
    offline: bool = False
    consent: Callable[[str], bool] | None = None

    @property
    def may_adopt(self) -> bool:
        """True if models of other caches are taken over, or someone can be asked."""
        return self.adopt or self.consent is not None


@dataclass(frozen=True)
class Event:
    """Base of all events; `at` is seconds since the epoch."""

    at: float = field(default_factory=time.time, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, with the event's name."""
        return {"event": type(self).__name__, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class RunStarted(Event):
    """A run has begun on these nodes.

    Attributes:
        run: its id, as `history` and `revert` know it.
        check: nothing will be changed.
    """

    run: str
    command: str
    nodes: tuple[str, ...]
    check: bool = False


@dataclass(frozen=True)
class StageStarted(Event):
    """A stage of a playbook has begun."""

    stage: str


@dataclass(frozen=True)
class StageFinished(Event):
    """A stage of a playbook is over."""

    stage: str
    seconds: float
    ok: bool


@dataclass(frozen=True)
class Connected(Event):
    """A node was reached, and takes work."""

    node: str
    seconds: float


@dataclass(frozen=True)
class Applying(Event):
    """A node was given a document of `resources` resources of `role`."""

    node: str
    role: str
    resources: int


@dataclass(frozen=True)
class Changing(Event):
    """A node has begun to change a resource."""

    node: str
    resource: str


@dataclass(frozen=True)
class Progress(Event):
    """A resource that takes long says how far it is."""

    node: str
    resource: str
    text: str


@dataclass(frozen=True)
class Result(Event):
    """The result of one resource on one node.

    Attributes:
        verdict: ok, change, unknown, failed or skipped.
        changes: attribute to [was, is now].
        output: what a reading Command printed.
    """

    node: str
    role: str
    resource: str
    verdict: str
    seconds: float = 0.0
    changes: Mapping[str, Any] = field(default_factory=dict)
    diff: str = ""
    reason: str = ""
    error: str = ""
    hint: str = ""
    output: str = ""


@dataclass(frozen=True)
class NodeFailed(Event):
    """A node is out of the run."""

    node: str
    error: str
    hint: str = ""
    unreachable: bool = False

    @classmethod
    def of(cls, node: str, error: SparkClusterError) -> NodeFailed:
        """Return the event that an error of a node is; with it, the error is told."""
        error.told = True
        return cls(node, error.message, error.hint, isinstance(error, Unreachable))


@dataclass(frozen=True)
class Note(Event):
    """Something a person should read; `level` is info or warning."""

    text: str
    level: str = "info"
    node: str = ""


@dataclass(frozen=True)
class MemoryPlanned(Event):
    """The plan's prediction of the GPU memory that a server will hold on a node.

    Attributes:
        loading_mib: the most while it loads its weights, MiB.
        ready_mib: when it takes requests, MiB.
    """

    node: str
    loading_mib: int
    ready_mib: int


@dataclass(frozen=True)
class MemoryHeld(Event):
    """The GPU memory that processes hold on a node at one phase of a run.

    Attributes:
        phase: `before` the run, `loading`, `ready`, `under_load`, or `stopped`. While a server
            loads or is under load, each reading that differs from the one before is an event, and
            the largest is what the phase held.
        used_mib: sum over the processes that `nvidia-smi --query-compute-apps` lists, MiB.
        mem_available_mib: MemAvailable of the node, MiB.
    """

    node: str
    phase: str
    used_mib: int
    mem_available_mib: int


@dataclass(frozen=True)
class RunFinished(Event):
    """A run is over; `error` says why when it is not ok."""

    ok: bool
    seconds: float
    error: str = ""


class Sink(Protocol):
    """Takes events, one at a time."""

    def take(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Bus:
    """Hands each event to every sink, from whichever thread, one at a time and in one order."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = list(sinks)
        self._lock = threading.RLock()  # a sink may have something to tell itself

    def add(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def emit(self, event: Event) -> None:
        with self._lock:
            for sink in self._sinks:
                sink.take(event)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
