"""The whole examination: one exchange a node, then every check; probes only when asked for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from spark_cluster.config.extension import CHECKS, Extensions, extensions_in_use, where_raised
from spark_cluster.config.facts import Pins
from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.yamlfile import shown
from spark_cluster.doctor import hardware, link, pair, probes, serving, system
from spark_cluster.doctor.check import Check, Look, NodeCheck, PairCheck, ProbeCheck, explained
from spark_cluster.doctor.observations import (
    TIMEOUT_S,
    CheckResult,
    Context,
    NodeSource,
    NotSeen,
    Observations,
    Probed,
    Verdict,
    fail,
    ok,
    question,
    sources,
    unknown,
)
from spark_cluster.engine.deployment import root_on
from spark_cluster.errors import InvalidFile, SparkClusterError, Unreachable, UsageError
from spark_cluster.issues.entries import (
    Effect,
    KnownIssueMatch,
    catalogue,
    ordered,
    own,
    per_project,
)
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.node_connection import NodeConnection
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.session import Session

# The check that a node answers over SSH, and what it means when it does not.

ID, TITLE = "system.reachable", "the node answers over SSH"
TAILNET = IPv4Network("100.64.0.0/10")
OWN_FAULTS = ("host key", "HOST KEY", "accepts none", "passphrase", "no address is known")
"""What the laptop refuses itself; the node is not to blame."""


def reached(node: str, seconds: float) -> CheckResult:
    """Return the result for a node that answered."""
    return _result(node, ok(f"answered in {seconds:.1f} s"))


def unreached(node: str, address: str, error: SparkClusterError, pings: bool | None) -> CheckResult:
    """Return the result for a node that did not answer.

    Args:
        pings: whether it answers a ping; None when that was not tried.
    """
    if pings:
        return _result(node, fail(f"{error.message}; it answers pings", "node-swaps-endlessly"))
    if _in_tailnet(address):
        return _result(node, fail(error.message, "tailscale-ssh"))
    if pings is False:
        return _result(node, fail(error.message, "node-off"))
    return replace(_result(node, fail(error.message)), fix=error.hint)


def worth_a_ping(error: SparkClusterError) -> bool:
    """Return True when a ping can tell more."""
    return isinstance(error, Unreachable) and not any(w in error.message for w in OWN_FAULTS)


def pings(address: str) -> bool | None:
    """Return True when an address answers a ping; None without the program."""
    wait = ["-W", "2"] if sys.platform == "linux" else ["-t", "2"]
    try:
        argv = ["ping", "-n", "-q", "-c", "1", *wait, address]
        return subprocess.run(argv, capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return None


def _result(node: str, verdict: Verdict) -> CheckResult:
    status, found = verdict.status, verdict.found
    result = CheckResult(ID, node, status, found, TITLE, "SSH, ping", "blocks")
    return explained(result, verdict)


def _in_tailnet(address: str) -> bool:
    try:
        return IPv4Address(address) in TAILNET
    except ValueError:
        return False


# All checks of doctor, by what they need.


def _of(*modules: ModuleType) -> tuple[Any, ...]:
    """The checks that modules define, in their order."""
    return tuple(
        value for module in modules for value in vars(module).values() if isinstance(value, Check)
    )


NODE: tuple[NodeCheck, ...] = (
    *_of(link, hardware, serving),
    *serving.CHECKS,
    *_of(system),
)
PAIR: tuple[PairCheck, ...] = _of(pair)
PROBES: tuple[ProbeCheck, ...] = _of(probes)
ALL: tuple[Check[Any], ...] = (*NODE, *PAIR, *PROBES)


# Checks of the user's project: functions in its `checks/*.py`, and the `log_check`s of its known
# issues.
#
# They run on the laptop, over what the nodes answered. What they want to be looked at is asked
# together with the rest: an argument list, a file or a glob of files, never a text for a shell.


@per_project
def _searches() -> tuple[serving.LogSearch, ...]:
    found = serving.searches(own().values())
    known = {check.id for check in ALL}
    for search in found:
        if search.id in known:
            issue = search.issues[0].id
            raise InvalidFile(f"{issue}: log_check.id: there is a check {search.id} already")
    return found


def own_words() -> tuple[str, ...]:
    """Return what else a node looks for in the engine's logs."""
    return tuple(word for search in _searches() for word in search.words)


def sources_of_checks() -> dict[str, NodeSource]:
    """Return what checks want to be looked at on a node beyond the rest, by name."""
    every = (*ALL, *checks())
    return {name: source for check in every for name, source in check.sources.items()}


def checks() -> tuple[NodeCheck, ...]:
    """Return the checks of the project.

    Raises:
        InvalidFile: a file or a check is wrong, with the line.
        Refused: others can write them.
    """
    return (*_of_files(), *map(serving.check_of, _searches()))


@per_project
def _of_files() -> tuple[NodeCheck, ...]:
    """The checks of all files, which are run once."""
    extensions = extensions_in_use()
    found: dict[str, NodeCheck] = {}
    if extensions is None:
        return ()
    for path in extensions.files(CHECKS, ".py", b"spark_cluster"):
        for check in _of_file(path, extensions):
            _must_fit(check, path, found)
            found[check.id] = replace(check, look=partial(_guarded, check.look, path))
    return tuple(found.values())


def _of_file(path: Path, extensions: Extensions) -> list[NodeCheck]:
    what = f"checks {path.stem}"
    module = extensions.load_module(path, f"checks.{path.stem}", what)
    found = [value for value in vars(module).values() if isinstance(value, Check)]
    if not found:
        raise InvalidFile(
            f"{what}: no check",
            where=f"{shown(path)}:1",
            hint="put @check(...) of spark_cluster.doctor.check above a function",
        )
    return found


def _must_fit(check: NodeCheck, path: Path, others: Mapping[str, NodeCheck]) -> None:
    """Raise InvalidFile unless a check can be run next to the others."""
    problem = _problem(check, others)
    if problem:
        code = getattr(check.look, "__code__", None)
        line = code.co_firstlineno if code is not None else 1
        raise InvalidFile(f"check {check.id}: {problem}", where=f"{shown(path)}:{line}")


def _problem(check: NodeCheck, others: Mapping[str, NodeCheck]) -> str:
    if not re.fullmatch(r"[a-z]+\.[a-z0-9-]+", str(check.id)):
        return f"id: found {check.id!r}, expected area.what, such as nas.mounted"
    if check.id in others or check.id in {ID, *(one.id for one in ALL)}:
        return "id: there is a check of this id already"
    if check.effect not in get_args(Effect):
        return f"effect: found {check.effect!r}, expected {', '.join(get_args(Effect))}"
    asked = {name: s for other in others.values() for name, s in other.sources.items()}
    return _source_problem(check, asked)


def _source_problem(check: NodeCheck, asked: Mapping[str, NodeSource]) -> str:
    """Return what is wrong with what a check wants to be looked at.

    Args:
        asked: what other checks of the project want.
    """
    known = sources(Context())
    for name, source in check.sources.items():
        if name in known or asked.get(name, source) != source:
            return f"sources: {name}: there is a source of this name already"
        if not _is_plain(source):
            return (
                f"sources: {name}: expected a NodeSource with either argv (a tuple of words), "
                "path or tree"
            )
    for need in check.needs:
        if need not in known and need not in check.sources:
            return f"needs: {need}: no such source"
    return ""


def _is_plain(source: object) -> bool:
    if not isinstance(source, NodeSource) or not isinstance(source.label, str):
        return False
    one = [what for what in (source.argv, source.path, source.tree) if what]
    is_list = isinstance(source.argv, tuple) and all(isinstance(w, str) for w in source.argv)
    return len(one) == 1 and is_list


def _guarded(look: Look[Observations], path: Path, seen: Observations) -> Verdict:
    """The verdict of a project's function; its fault is no end of the examination."""
    try:
        verdict = look(seen)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"it returned {type(verdict).__name__}, expected ok, warn or fail")
    except NotSeen:
        raise
    except Exception as error:  # noqa: BLE001  (of the user's code; the other checks go on)
        place = where_raised(error, path) or shown(path)
        return unknown(f"{place}: {type(error).__name__}: {error}")
    return verdict


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

    def probe(self, nodes: Sequence[Observations], asked: probes.Question) -> Probed:
        """Send traffic between the nodes, and ask for a completion."""
        return probes.probe(self.inventory, nodes, self._sessions, asked)

    def reachability(self) -> list[CheckResult]:
        """Return a result for every node; one that does not answer SSH is pinged."""
        found = [reached(name, seconds) for name, seconds in self.seconds.items()]
        for name, error in self.unreached.items():
            address = self.nodes[name].address
            answers = pings(address) if worth_a_ping(error) else None
            found.append(unreached(name, address, error, answers))
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
            fabric=() if node.fabric == "detect" else tuple(one.name for one in node.fabric),
            docker_users=node.settings_for("containers").data.get("users") is True,
            pins=self.pins,
            _sources=sources(context),
        )

    def _context(self, user: str, node: InventoryNode) -> Context:
        words = (*serving.WORDS, *own_words())
        context = Context(user, words, cache_root=root_on(node), own=sources_of_checks())
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
        for check in (*NODE, *checks())
    ]
    together = "+".join(seen.node for seen in nodes)
    if len(nodes) > 1:
        named = [seen.named() for seen in nodes]
        found += [check.result(named, together) for check in PAIR]
    if probed is not None:
        found += [check.result(probed, together) for check in PROBES]
    return select(found, wanted)


def select(found: Iterable[CheckResult], only: Iterable[str]) -> list[CheckResult]:
    """Return the results of some areas or checks, problems first."""
    wanted = set(only)
    chosen = [f for f in found if not wanted or wanted & {f.area, f.id}]
    return sorted(chosen, key=lambda result: result.order)


def must_be_known(only: Iterable[str]) -> None:
    """Raise UsageError for a name that is neither an area nor a check."""
    every = (*ALL, *checks())
    areas = tuple(dict.fromkeys(check.area for check in every))
    known = {*areas, *(check.id for check in every), ID}
    for name in only:
        if name not in known:
            raise UsageError(
                f"--only {name}: no such area or check",
                hint=f"areas: {', '.join(areas)}; `spark-cluster doctor -v` names every check",
            )
