"""Checks of what the engine's containers and units logged: the catalogue's `log_check`s.

The literals are looked for on the node, so that a log of any length costs little; the patterns
decide here. What was written before the last start is a warning: it may explain a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from spark_cluster.doctor.check import NodeCheck, check
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.verdict import Verdict, fail, ok, warn
from spark_cluster.errors import InvalidFile
from spark_cluster.issues.entries import ORDER, Issue, LogCheck, LogPattern, shipped
from spark_cluster.node.containers import ContainerState, LogLine

LONGEST = 240


@dataclass(frozen=True)
class LogSearch:
    """A check of logs.

    Attributes:
        check: id, title and so on.
        issues: what it looks for; what is worse first.
    """

    check: LogCheck
    issues: tuple[Issue, ...]

    @property
    def id(self) -> str:
        return self.check.id

    @property
    def sample(self) -> str:
        """A line that was really seen."""
        return self.issues[0].samples[0]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The literals of which every line that matters has one."""
        return tuple(dict.fromkeys(p.has for issue in self.issues for p in _patterns(issue)))

    def look(self, seen: Observations) -> Verdict:
        """Return the worst verdict on the logs of a node's containers."""
        engines = seen.engines
        found = [v for issue in self.issues for e in engines if (v := _of(issue, e)) is not None]
        if found:
            return next((verdict for verdict in found if verdict.status == "fail"), found[0])
        if self.check.silent and self._is_silent(engines):
            return ok(self.check.silent)
        names = ", ".join(engine.name for engine in engines)
        return ok(
            f"not in the log of {names}" if names else "there is no engine container on this node"
        )

    def _is_silent(self, engines: Iterable[ContainerState]) -> bool:
        """Return True when engines on several nodes log nothing either way."""
        over = [engine for engine in engines if engine.running and engine.tp > 1]
        texts = (line.text for engine in over for line in engine.log)
        return bool(over) and not any(word in text for text in texts for word in self.words)


def _patterns(issue: Issue) -> list[LogPattern]:
    return [*issue.log, *([issue.cleared_by] if issue.cleared_by else [])]


def _of(issue: Issue, engine: ContainerState) -> Verdict | None:
    """Return the verdict on one issue in one container's log; None when it is not in it."""
    lines = [line for line in engine.log if any(p.regex.search(line.text) for p in issue.log)]
    cleared = _shows(issue.cleared_by, engine) and not _shows(issue.confirmed_by, engine)
    return _verdict(issue, engine, lines) if lines and not cleared else None


def _shows(pattern: LogPattern | None, engine: ContainerState) -> bool:
    """Return True when a line of the container's log matches."""
    return pattern is not None and any(pattern.regex.search(line.text) for line in engine.log)


def _verdict(issue: Issue, engine: ContainerState, lines: list[LogLine]) -> Verdict:
    now = [line for line in lines if engine.since_start(line)]
    message = f"{engine.name}: {(now or lines)[0].text[:LONGEST]}"
    if now and (engine.running or engine.ours):
        return fail(message, issue.id)
    why = "before its last start" if not now else f"it is {engine.status}"
    return warn(f"{message} ({why})", issue.id)


def searches(catalogued: Iterable[Issue]) -> tuple[LogSearch, ...]:
    """Return the checks of logs that known issues ask for, each once.

    Raises:
        InvalidFile: nothing gives one a title.
    """
    shared: dict[str, list[Issue]] = {}
    titled: dict[str, LogCheck] = {}
    for issue in catalogued:
        if issue.log_check is not None:
            shared.setdefault(issue.log_check.id, []).append(issue)
            if issue.log_check.title:
                titled.setdefault(issue.log_check.id, issue.log_check)
    untitled = next((id for id in shared if id not in titled), None)
    if untitled is not None:
        raise InvalidFile(f"{shared[untitled][0].id}: log_check.title: missing")
    return tuple(
        LogSearch(titled[id], tuple(sorted(issues, key=lambda issue: ORDER[issue.severity])))
        for id, issues in shared.items()
    )


def check_of(search: LogSearch) -> NodeCheck:
    """Return the check that looks for what a search names."""
    return check(
        search.id,
        title=search.check.title,
        needs=("tools", "containers", "logs"),
        effect=search.check.effect,
    )(search.look)


SEARCHES = searches(shipped().values())
CHECKS: tuple[NodeCheck, ...] = tuple(check_of(search) for search in SEARCHES)

ALSO = ("Application startup complete", "Loading weights took", "Error: ", "Exception: ")
"""Words that other checks look for."""

WORDS = tuple(dict.fromkeys([*(word for search in SEARCHES for word in search.words), *ALSO]))
"""What a node looks for in the logs."""
