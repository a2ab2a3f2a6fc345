"""Events: the one way out of a run, for the display, the recap, `--json` and the run record."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_cluster.errors import SparkClusterError, Unreachable


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
        """Return the event that an error of a node is."""
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
