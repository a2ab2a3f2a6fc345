"""The results of the Python API's methods; `to_dict()` is what a command prints with `--json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from spark_cluster.config.facts import Facts
from spark_cluster.config.schema import Document, ErrorDocument, Flat, Hidden, PrintedAs, printed
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.vram import NodeVram
from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.events import Changing, Event, NodeFailed, Result, RunStarted

# -- what is counted in a run, node by node, and why a node has no result --------------------------


@dataclass
class Tally:
    """A node's row of the recap."""

    ok: int = 0
    change: int = 0
    unknown: int = 0
    failed: int = 0
    skipped: int = 0
    unreachable: bool = False
    seconds: float = 0.0

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Resources by verdict, in the order of the recap."""
        return self.ok, self.change, self.unknown, self.failed, self.skipped


class Recap:
    """Counts, node by node."""

    def __init__(self) -> None:
        self.nodes: dict[str, Tally] = {}
        self.last: dict[str, str] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.nodes.update({node: Tally() for node in event.nodes})
        elif isinstance(event, Changing):
            self.last[event.node] = event.resource
        elif isinstance(event, Result):
            tally = self.nodes.setdefault(event.node, Tally())
            setattr(tally, event.verdict, getattr(tally, event.verdict) + 1)
            tally.seconds += event.seconds
            self.last.pop(event.node, None)
        elif isinstance(event, NodeFailed):
            tally = self.nodes.setdefault(event.node, Tally())
            tally.unreachable = event.unreachable
            if not event.unreachable:  # a role may refuse it before any resource could fail
                tally.failed = max(tally.failed, 1)

    def close(self) -> None:
        return None

    @property
    def changed(self) -> int:
        """Changes on all nodes."""
        return sum(tally.change for tally in self.nodes.values())


@dataclass(frozen=True)
class NodeError:
    """The reason why a node has no result.

    Attributes:
        message: what failed and where.
        hint: what to do next; empty when there is nothing to add.
    """

    message: str
    hint: str


@dataclass(frozen=True)
class RunSummary(Document):
    """How a run went.

    Attributes:
        id: of the run, as `history` and `revert` know it.
        ok: nothing failed.
        changed: changes on all nodes; in check mode those that would be made.
        seconds: by stage, and in `total` all of it.
    """

    id: Hidden[str]
    ok: bool
    changed: int
    seconds: dict[str, float]


class NodeErrors(Document):
    """A result of which a node may drop out without ending the run.

    Attributes:
        errors: the error of each node that dropped out, by name.
    """

    errors: Mapping[str, SparkClusterError]

    @property
    def ok(self) -> bool:
        """True if no node dropped out."""
        return not self.errors

    def raise_for_errors(self) -> None:
        """Raise the error of the first node that dropped out; do nothing when none did.

        Raises:
            SparkClusterError: that error.
        """
        for error in self.errors.values():
            raise error


# -- asking ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """A node that answers.

    Attributes:
        rtt_ms: one network turn, with the agent's part, milliseconds.
        connect_ms: to connect and start an agent, milliseconds.
        python: the version of its Python.
    """

    rtt_ms: float
    connect_ms: float
    python: str


@dataclass(frozen=True)
class PingedNode(Document):
    """A node that answers, as `ping --json` prints it."""

    name: str
    reached: Flat[Reached]
    reachable: bool = True


@dataclass(frozen=True)
class UnreachedNode(Document):
    """A node that does not answer, as `ping --json` prints it."""

    name: str
    error: str
    hint: str
    reachable: bool = False
    rtt_ms: None = None


def _pinged(
    nodes: Mapping[str, Reached | SparkClusterError],
) -> list[PingedNode | UnreachedNode]:
    return [
        PingedNode(name, found)
        if isinstance(found, Reached)
        else UnreachedNode(name, found.message, found.hint)
        for name, found in nodes.items()
    ]


@dataclass(frozen=True)
class PingResult(Document):
    """The answers of the nodes.

    Attributes:
        nodes: name to the answer, or to the error of a node that was not reached.
    """

    nodes: Annotated[Mapping[str, Reached | SparkClusterError], PrintedAs(_pinged)]

    @property
    def errors(self) -> dict[str, SparkClusterError]:
        """The errors of the nodes that were not reached, by name."""
        return {n: o for n, o in self.nodes.items() if isinstance(o, SparkClusterError)}

    @property
    def ok(self) -> bool:
        """True if every node was reached."""
        return not self.errors


@dataclass(frozen=True)
class NodeFacts(Document):
    """A node as `facts --json` prints it."""

    name: str
    address: str
    links: tuple[Link, ...]
    facts: Flat[Facts]


def _facts(nodes: tuple[Node, ...]) -> list[NodeFacts]:
    return [NodeFacts(node.name, node.address, node.links, node.facts) for node in nodes]


@dataclass(frozen=True)
class FactsResult(Document):
    """The nodes with their facts and links, in the inventory's order."""

    nodes: Annotated[tuple[Node, ...], PrintedAs(_facts)]


@dataclass(frozen=True)
class VramResult(Document):
    """One reading of every node."""

    nodes: tuple[NodeVram, ...]


# -- changing nodes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlayedNode:
    """The resources of a node by verdict."""

    ok: int
    change: int
    unknown: int
    failed: int
    skipped: int


def _written(result: Any) -> Any:
    """Return what a user's function returned as JSON, as text where JSON has nothing like it."""
    return json.loads(json.dumps(result, default=str))


@dataclass(frozen=True)
class PlaybookResult(NodeErrors):
    """The result of a playbook. A node may drop out of it without ending it.

    Attributes:
        run: how the run went; not ok when a node dropped out.
        result: what the playbook's function returned.
        nodes: by name.
        errors: the error of each node that dropped out, by name.
    """

    run: Flat[RunSummary]
    result: Annotated[Any, PrintedAs(_written)]
    nodes: Mapping[str, PlayedNode]
    errors: Hidden[Mapping[str, SparkClusterError]]

    @printed
    def error(self) -> ErrorDocument | None:
        """The error of the first node that dropped out of the run."""
        return next(iter(self.errors.values()), None)


@dataclass(frozen=True)
class ProvisionedNode(PlayedNode):
    """A node after a run: its resources by verdict, and the result.

    Attributes:
        unreachable: it was not reached, or was lost in the run.
        notes: what its user should know.
        firmware: device to version; null where fwupd is not installed.
    """

    unreachable: bool
    error: NodeError | None
    notes: list[str]
    firmware: dict[str, str] | None


@dataclass(frozen=True)
class MeasuredBandwidth:
    """The bandwidth of one twin in one direction, Gb/s, and its verdict: good, low, degraded."""

    hop: str
    gbits: float
    verdict: str


@dataclass(frozen=True)
class ProvisionResult(NodeErrors):
    """The result of `provision`. A node that fails does not stop the others.

    Attributes:
        run: how the run went; not ok when a node failed.
        nodes: by name.
        bandwidth: each twin that was measured.
        errors: the error that a node ends with, by name, of those that failed.
    """

    run: Flat[RunSummary]
    nodes: Mapping[str, ProvisionedNode]
    bandwidth: tuple[MeasuredBandwidth, ...]
    errors: Hidden[Mapping[str, SparkClusterError]]
