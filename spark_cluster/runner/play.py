"""The API of playbooks: nodes, roles, stages; ordinary Python does the remainder."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_cluster.config.inventory import Inventory, part_of
from spark_cluster.config.topology import Node, tagged, topology_of
from spark_cluster.errors import Failed, Refused, SparkClusterError, Unreachable
from spark_cluster.resources.base import Resource
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.delivery import Applied, Delivery, check
from spark_cluster.runner.events import (
    Bus,
    NodeFailed,
    Note,
    Options,
    Progress,
    StageFinished,
    StageStarted,
)
from spark_cluster.runner.parallel import all_of, in_parallel
from spark_cluster.runner.session import Session

if TYPE_CHECKING:
    from spark_cluster.config.project import Project

__all__ = ["Applied", "Play", "RoleCall"]


@dataclass(frozen=True)
class RoleCall:
    """A role with the settings that the playbook gives it on top of the inventory's."""

    name: str
    given: dict[str, Any]


@dataclass(eq=False)
class Play:
    """A run over some nodes.

    Args:
        inventory: what there is.
        project: where roles are looked up.
        connections: the nodes of this run, open.
        bus: where the events go.
        options: how it is meant.

    Attributes:
        seconds: of each stage.
        out: the error of each node that has left the run, by name.
        failed_stage: the innermost stage that the last error came out of; empty while none did.
        after_interrupt: what to do after Ctrl-C, where the playbook knows better than "run the same
            command again".
    """

    inventory: Inventory
    project: Project
    connections: Connections
    bus: Bus
    options: Options = field(default_factory=Options)
    seconds: dict[str, float] = field(default_factory=dict, init=False)
    out: dict[str, SparkClusterError] = field(default_factory=dict, init=False)
    failed_stage: str = field(default="", init=False)
    after_interrupt: str = field(default="", init=False)
    _secrets: set[str] = field(default_factory=set, init=False)

    # -- the nodes -------------------------------------------------------------------------------

    @property
    def check(self) -> bool:
        """True if this run changes nothing."""
        return self.options.check

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are still in the run, in the inventory's order."""
        at = self.connections
        seen = dict(at.facts)
        ask = seen.__getitem__ if seen.keys() >= at.users.keys() else at.facts_of
        known = topology_of(self.inventory, {*seen, *at.users}, at.users, ask, at.fabric)
        return [s for n, s in known.items() if n in at.nodes and n not in self.out]

    @property
    def head(self) -> Node:
        """The head.

        Raises:
            Refused: it is not in this run.
            SparkClusterError: the error with which it has left the run.
        """
        for node in self.nodes:
            if node.is_head:
                return node
        if lost := self.out.get(self.inventory.head.name):
            raise lost
        raise Refused("the head is not in this run", hint="leave --limit out, or widen it")

    @property
    def workers(self) -> list[Node]:
        """The nodes other than the head."""
        return [node for node in self.nodes if not node.is_head]

    def known_now(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the same nodes, in the same order, as the run knows them now: the fabric's
        addresses may have come in this very run."""
        known = {node.name: node for node in self.nodes}
        return [known[node.name] for node in nodes if node.name in known]

    def session(self, node: Node) -> Session:
        """The node's agent, for what is not a resource: `run`, `http`."""
        return self.connections.session(node.name)

    @property
    def sessions(self) -> dict[str, Session]:
        """The agents of all nodes, by the node's name."""
        return self.sessions_of(self.nodes)

    def sessions_of(self, nodes: Iterable[Node]) -> dict[str, Session]:
        """Return the agents of some nodes, by the node's name."""
        return {node.name: self.session(node) for node in nodes}

    @property
    def secrets(self) -> frozenset[str]:
        """Secrets that resources of this run hold, which must not be shown."""
        return frozenset(self._secrets)

    def refresh(self, nodes: Iterable[Node], *, fail_fast: bool = True) -> None:
        """Ask these nodes for their facts again.

        Args:
            fail_fast: a node that does not answer ends the run; otherwise it leaves it.
        """
        for name, error in self.connections.refresh([node.name for node in nodes]).items():
            self._leave(name, error)
            if fail_fast:
                raise error

    def readmit(self) -> None:
        """Return the nodes on which something failed to the run; unreachable ones stay out."""
        for name, error in list(self.out.items()):
            if not isinstance(error, Unreachable):
                del self.out[name]

    def part(self, names: Sequence[str]) -> Play:
        """Return this run over some of its nodes, as if they were a cluster of their own.

        Connections, secrets, timings and lost nodes are shared with this run.

        Args:
            names: of the nodes; the first one is the head there.
        """
        made = copy.copy(self)
        made.inventory = part_of(self.inventory, names)
        made.connections = self.connections.part(names)
        return made

    # -- doing -----------------------------------------------------------------------------------

    def role(self, name: str, /, **given: Any) -> RoleCall:
        """A role with settings of the playbook's, to be given to `apply`."""
        return RoleCall(name, given)

    def apply(
        self,
        nodes: Node | Sequence[Node],
        *what: str | RoleCall | Sequence[Resource],
        fail_fast: bool = True,
    ) -> Applied:
        """Apply roles (or resources) to nodes, in parallel; returns when all are done.

        All of `what` goes to a node as one document, so that it costs one turn of the network.

        Args:
            what: role names, `play.role(...)`, or lists of resources.
            fail_fast: a node's failure ends the run, once the others are done; otherwise the node
                leaves the run and the others go on.

        Raises:
            SparkClusterError: with `fail_fast`, the first node's error.
        """
        wanted = [nodes] if isinstance(nodes, Node) else list(nodes)
        current = {node.name: node for node in self.nodes}
        chosen = [current[n.name] for n in wanted if n.name in current]
        documents = self._documents(chosen, what, fail_fast=fail_fast)
        applied = Applied({node.name: {} for node in chosen})
        at, how = self.connections, self.options
        to = partial(Delivery, at, self.bus, how, applied=applied, secrets=self._secrets)
        jobs = {name: partial(to(name).deliver, found) for name, found in documents.items()}
        for name, outcome in in_parallel(jobs).items():
            if isinstance(outcome, SparkClusterError):
                self._leave(name, outcome)
        errors = [self.out[node.name] for node in chosen if node.name in self.out]
        if errors and fail_fast:
            raise errors[0]
        return applied

    def refuse_unknown(self, *what: str | RoleCall | Sequence[Resource]) -> None:
        """Refuse a name of --tags, --skip-tags or --start-at that nothing of `what` has.

        For a playbook that applies nothing else: otherwise the names are checked at the end of the
        run, when those that were right have already been applied.

        Raises:
            UsageError: such a name, if every node is there to tell.
        """
        seen = replace(self.options.selection, _begun=set(), _seen=set())
        for name, resources in self._documents(self.nodes, what, fail_fast=False).items():
            for role, resource in resources:
                seen.wants(name, role, resource)
        if not self.out and (unmatched := seen.unmatched()):
            raise unmatched

    def together(self, *jobs: Callable[[], Any]) -> list[Any]:
        """Run several calls of this play in parallel; the first error is raised at the end."""
        return list(all_of({str(i): job for i, job in enumerate(jobs)}).values())

    def on_each(self, nodes: Sequence[Node], job: Callable[[Node], Any]) -> dict[str, Any]:
        """Call `job(node)` for every node in parallel; name to what it returned."""
        return all_of({node.name: partial(job, node) for node in nodes})

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A named, timed part of the run, shown as such; not ok when a node is lost in it."""
        self.bus.emit(StageStarted(name))
        started = time.monotonic()
        ok, lost = False, len(self.out)
        self.failed_stage = ""
        try:
            yield
            ok = len(self.out) == lost
        except BaseException:
            self.failed_stage = self.failed_stage or name
            raise
        finally:
            seconds = time.monotonic() - started
            self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 3)
            self.bus.emit(StageFinished(name, seconds, ok))

    def note(self, text: str, *, warning: bool = False, node: Node | None = None) -> None:
        """Tell the user something."""
        level = "warning" if warning else "info"
        self.bus.emit(Note(text, level, node.name if node else ""))

    # -- inside ----------------------------------------------------------------------------------

    def progress_of(self, node: Node, what: str) -> Callable[[dict[str, Any]], None]:
        """Return a listener to a node's answer that shows its progress as that of `what`."""

        def on_event(event: dict[str, Any]) -> None:
            if event.get("event") == "progress":
                self.bus.emit(Progress(node.name, what, str(event["text"])))

        return on_event

    def _documents(
        self,
        nodes: Sequence[Node],
        what: Sequence[str | RoleCall | Sequence[Resource]],
        *,
        fail_fast: bool,
    ) -> dict[str, list[tuple[str, Resource]]]:
        """Return each node's resources; without `fail_fast`, a refused node leaves the run."""
        documents = {}
        for node in nodes:
            try:
                documents[node.name] = self._resources(node, what)
            except (Failed, Refused, Unreachable) as error:
                if fail_fast:
                    raise
                self._leave(node.name, error)
        return documents

    def _resources(
        self, node: Node, what: Sequence[str | RoleCall | Sequence[Resource]]
    ) -> list[tuple[str, Resource]]:
        """(role, resource) of all that is asked for, checked as one document."""
        found: list[tuple[str, Resource]] = []
        for part in what:
            if isinstance(part, (str, RoleCall)):
                call = RoleCall(part, {}) if isinstance(part, str) else part
                role, entry = self.project.load_role(call.name), self.inventory.nodes[node.name]
                found += [(call.name, r) for r in role.resources(node, entry, call.given)]
            else:
                found += [("playbook", r) for r in tagged(part, "playbook")]
        check([r for _, r in found], node.name)
        return found

    def _leave(self, name: str, error: SparkClusterError) -> None:
        self.out[name] = error
        self.bus.emit(NodeFailed.of(name, error))
