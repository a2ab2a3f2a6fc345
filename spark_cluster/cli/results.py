"""The results of the Python API's methods; `to_dict()` is what a command prints with `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.events import Changing, Event, NodeFailed, Result, RunStarted

if TYPE_CHECKING:
    from pathlib import Path

    from spark_cluster.engine.memory_phases import MemoryOfNode
    from spark_cluster.engine.ray_cluster import RayStatus
    from spark_cluster.engine.result import Served
    from spark_cluster.engine.vram import NodeVram, Stopped
    from spark_cluster.topology import Node


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
class RunSummary:
    """How a run went.

    Attributes:
        id: of the run, as `history` and `revert` know it.
        ok: nothing failed.
        changed: changes on all nodes; in check mode those that would be made.
        seconds: by stage, and in `total` all of it.
    """

    id: str
    ok: bool
    changed: int
    seconds: dict[str, float]

    def to_dict(self, **found: Any) -> dict[str, Any]:
        """Return it as `--json` prints it, with what the run `found`."""
        return {"ok": self.ok, "changed": self.changed, **found, "seconds": self.seconds}


@dataclass(frozen=True)
class NodeError:
    """The reason why a node has no result.

    Attributes:
        message: what failed and where.
        hint: what to do next; empty when there is nothing to add.
    """

    message: str
    hint: str

    @classmethod
    def of(cls, error: SparkClusterError) -> NodeError:
        """Return the error as JSON has it."""
        return cls(error.message, error.hint)


class NodeErrors:
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
class PingResult:
    """The answers of the nodes.

    Attributes:
        nodes: name to the answer, or to the error of a node that was not reached.
    """

    nodes: Mapping[str, Reached | SparkClusterError]

    @property
    def errors(self) -> dict[str, SparkClusterError]:
        """The errors of the nodes that were not reached, by name."""
        return {n: o for n, o in self.nodes.items() if isinstance(o, SparkClusterError)}

    @property
    def ok(self) -> bool:
        """True if every node was reached."""
        return not self.errors

    def to_dict(self) -> dict[str, Any]:
        """Return it as `ping --json` prints it."""
        return {"nodes": [pinged(name, outcome) for name, outcome in self.nodes.items()]}


def pinged(name: str, outcome: Reached | SparkClusterError) -> dict[str, object]:
    """Return one node as `ping --json` prints it."""
    if isinstance(outcome, Reached):
        return {
            "name": name,
            "reachable": True,
            "rtt_ms": outcome.rtt_ms,
            "connect_ms": outcome.connect_ms,
            "python": outcome.python,
        }
    return {
        "name": name,
        "reachable": False,
        "rtt_ms": None,
        "error": outcome.message,
        "hint": outcome.hint,
    }


@dataclass(frozen=True)
class FactsResult:
    """The nodes with their facts and links, in the inventory's order."""

    nodes: tuple[Node, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `facts --json` prints it."""
        return {
            "nodes": [
                {
                    "name": node.name,
                    "address": node.address,
                    "links": [asdict(link) for link in node.links],
                    **asdict(node.facts),
                }
                for node in self.nodes
            ]
        }


@dataclass(frozen=True)
class VramResult:
    """One reading of every node."""

    nodes: tuple[NodeVram, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `vram --json` prints it."""
        return {"nodes": [reading.to_dict() for reading in self.nodes]}


# -- changing nodes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlayedNode:
    """The resources of a node by verdict."""

    ok: int
    change: int
    unknown: int
    failed: int
    skipped: int


@dataclass(frozen=True)
class PlaybookError:
    """The error of the first node that dropped out of the run."""

    message: str
    where: str
    hint: str


@dataclass(frozen=True)
class PlaybookResult(NodeErrors):
    """The result of a playbook. A node may drop out of it without ending it.

    Attributes:
        run: how the run went; not ok when a node dropped out.
        result: what the playbook's function returned.
        nodes: by name.
        errors: the error of each node that dropped out, by name.
    """

    run: RunSummary
    result: Any
    nodes: Mapping[str, PlayedNode]
    errors: Mapping[str, SparkClusterError]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `playbook --json` prints it."""
        first = next(iter(self.errors.values()), None)
        return self.run.to_dict(
            error=None if first is None else asdict(PlaybookError(**first.to_dict())),
            result=self.result,
            nodes={name: asdict(node) for name, node in self.nodes.items()},
        )


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

    run: RunSummary
    nodes: Mapping[str, ProvisionedNode]
    bandwidth: tuple[MeasuredBandwidth, ...]
    errors: Mapping[str, SparkClusterError]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `provision --json` prints it."""
        nodes = {name: asdict(node) for name, node in self.nodes.items()}
        return self.run.to_dict(nodes=nodes, bandwidth=[asdict(one) for one in self.bandwidth])


@dataclass(frozen=True)
class UpResult:
    """The result of `up`.

    Attributes:
        run: how the run went.
        served: the verified endpoint; None where nothing was verified (check mode, a selection of
            roles).
        memory: the GPU memory of each node by phase, next to what the plan predicted.
        memory_plot: file of this machine with its course; None where nothing was started, without
            the extra `bench`, or of several models.
        several: several models are served.
    """

    run: RunSummary
    served: Served | None
    memory: tuple[MemoryOfNode, ...]
    memory_plot: Path | None = None
    several: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as `up --json` prints it."""
        found = self.served.to_dict() if self.served is not None else {}
        memory = [asdict(node) for node in self.memory]
        plot = str(self.memory_plot) if self.memory_plot is not None else None
        more = {} if self.several else {"memory_plot": plot}
        return self.run.to_dict(**found, memory=memory, **more)


@dataclass(frozen=True)
class DownResult:
    """The result of `down`.

    Attributes:
        run: how the run went.
        stopped: the memory held before and after; None in check mode.
    """

    run: RunSummary
    stopped: Stopped | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as `down --json` prints it."""
        return self.run.to_dict(**(self.stopped.to_dict() if self.stopped is not None else {}))


@dataclass(frozen=True)
class RayUpResult:
    """The result of `ray up`.

    Attributes:
        run: how the run went.
        cluster: the Ray cluster; None in check mode and with a selection of roles.
    """

    run: RunSummary
    cluster: RayStatus | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as `ray up --json` prints it."""
        cluster = self.cluster.to_dict() if self.cluster is not None else None
        return self.run.to_dict(cluster=cluster)
