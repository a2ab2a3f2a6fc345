"""The whole examination: one exchange a node, then every check; probes only when asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.doctor import logs, own_checks, probing, reach, registry
from spark_cluster.doctor.observations import TIMEOUT_S, Observations
from spark_cluster.doctor.probed import Probed
from spark_cluster.doctor.question import Context, question, sources
from spark_cluster.doctor.verdict import CheckResult
from spark_cluster.engine.caches import root_on
from spark_cluster.errors import SparkClusterError, Unreachable, UsageError
from spark_cluster.known_issues.entries import catalogue
from spark_cluster.known_issues.match import KnownIssueMatch, ordered
from spark_cluster.runner.parallel import in_parallel

if TYPE_CHECKING:
    from spark_cluster.config.inventory import Inventory, InventoryNode
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.facts.pins import Pins
    from spark_cluster.runner.dialer import Dialer
    from spark_cluster.runner.node_connection import NodeConnection
    from spark_cluster.runner.session import Session


@dataclass(frozen=True)
class Diagnosis:
    """The results of an examination.

    Attributes:
        results: problems first.
        unreached: nodes that could not be examined, with the reason.
    """

    results: tuple[CheckResult, ...]
    unreached: dict[str, SparkClusterError] = field(default_factory=dict)

    def count(self, status: str) -> int:
        return sum(1 for result in self.results if result.status == status)

    @property
    def issues(self) -> list[KnownIssueMatch]:
        """The known issues behind the results, each once, errors first."""
        found: dict[str, KnownIssueMatch] = {}
        for result in self.results:
            if result.issue and result.issue not in found:
                match = catalogue()[result.issue].match(result.found, result.node)
                found[match.id] = replace(match, cause=result.cause, fix=result.fix)
        return ordered(list(found.values()))

    @property
    def exit_code(self) -> int:
        """3 when a node is out of reach, 5 when something fails, else 0."""
        if any(isinstance(error, Unreachable) for error in self.unreached.values()):
            return 3
        return 5 if self.count("fail") else 0


class Examination:
    """The nodes' connections for as long as they are examined; use as a context manager.

    Args:
        inventory: what there is.
        nodes: which of it.
        dialer: reaches them.
        recipe: what they serve, when that is known.
        pins: combinations of kernel and driver that are known.
    """

    def __init__(
        self,
        inventory: Inventory,
        nodes: Sequence[InventoryNode],
        dialer: Dialer,
        recipe: Recipe | None = None,
        pins: Pins | None = None,
    ) -> None:
        self.inventory = inventory
        self.pins = pins
        self.nodes = {node.name: node for node in nodes}
        self.recipe = recipe
        self._dialer = dialer
        self.unreached: dict[str, SparkClusterError] = {}
        self.seconds: dict[str, float] = {}
        self._connections: dict[str, NodeConnection] = {}
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Examination:
        return self

    def __exit__(self, *exc: object) -> None:
        in_parallel({name: s.close for name, s in self._sessions.items()})
        for connection in list(self._connections.values()):
            connection.close()

    def observe(self) -> list[Observations]:
        """Ask every node, in parallel; those out of reach are in `unreached`."""
        jobs = {name: partial(self._observe, node) for name, node in self.nodes.items()}
        outcomes = in_parallel(jobs)
        self.unreached = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
        return [o for o in outcomes.values() if isinstance(o, Observations)]

    def probe(self, nodes: Sequence[Observations], asked: probing.Question) -> Probed:
        """Send traffic between the nodes, and ask for a completion."""
        return probing.probe(self.inventory, nodes, self._sessions, asked)

    def reachability(self) -> list[CheckResult]:
        """Return a result for every node; one that does not answer SSH is pinged."""
        found = [reach.reached(name, seconds) for name, seconds in self.seconds.items()]
        for name, error in self.unreached.items():
            address = self.nodes[name].address
            answers = reach.pings(address) if reach.worth_a_ping(error) else None
            found.append(reach.unreached(name, address, error, answers))
        return found

    def _observe(self, node: InventoryNode) -> Observations:
        started = time.monotonic()
        connection = self._dialer.dial(node)
        self._connections[node.name] = connection
        user = connection.user
        session = connection.session("doctor", become=True)
        self._sessions[node.name] = session
        context = self._context(user, node)
        answer = session.request("gather", **question(context), timeout=TIMEOUT_S)
        self.seconds[node.name] = time.monotonic() - started
        return Observations(
            node.name,
            answer,
            user=user,
            linked=len(self.inventory.nodes) > 1,
            mtu=self.inventory.mtu,
            docker_users=node.settings_for("containers").data.get("users") is True,
            pins=self.pins,
            _sources=sources(context),
        )

    def _context(self, user: str, node: InventoryNode) -> Context:
        words = (*logs.WORDS, *own_checks.words())
        context = Context(user, words, cache_root=root_on(node), own=own_checks.sources())
        if self.recipe is None:
            return context
        model = self.recipe.model
        paths = () if model.in_hub_cache else (model.node_path,)
        return replace(context, model_paths=paths, dashboard=self.recipe.ray.dashboard_port)


def judge(
    nodes: Sequence[Observations], probed: Probed | None = None, only: Iterable[str] = ()
) -> list[CheckResult]:
    """Run every check on what was seen; problems first.

    Args:
        only: areas or ids of checks; nothing means all.
    """
    wanted = set(only)
    found = [
        check.result(seen, seen.node, alone=not seen.linked)
        for seen in nodes
        for check in (*registry.NODE, *own_checks.checks())
    ]
    together = "+".join(seen.node for seen in nodes)
    if len(nodes) > 1:
        named = [seen.named() for seen in nodes]
        found += [check.result(named, together) for check in registry.PAIR]
    if probed is not None:
        found += [check.result(probed, together) for check in registry.PROBES]
    return select(found, wanted)


def select(found: Iterable[CheckResult], only: Iterable[str]) -> list[CheckResult]:
    """Return the results of some areas or checks, problems first."""
    wanted = set(only)
    chosen = [f for f in found if not wanted or wanted & {f.area, f.id}]
    return sorted(chosen, key=lambda result: result.order)


def must_be_known(only: Iterable[str]) -> None:
    """Raise UsageError for a name that is neither an area nor a check."""
    every = (*registry.ALL, *own_checks.checks())
    areas = tuple(dict.fromkeys(check.area for check in every))
    known = {*areas, *(check.id for check in every), reach.ID}
    for name in only:
        if name not in known:
            raise UsageError(
                f"--only {name}: no such area or check",
                hint=f"areas: {', '.join(areas)}; `doctor -v` shows every check's name",
            )
