"""The known issues behind a rung of readiness that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_cluster.known_issues.entries import Issue, catalogue
from spark_cluster.known_issues.match import KnownIssueMatch, ordered
from spark_cluster.known_issues.rules import lint

if TYPE_CHECKING:
    from spark_cluster.config.launch import Launch


def live(rungs: Mapping[str, str], launch: Launch | None = None) -> list[KnownIssueMatch]:
    """Return the known issues that make rungs fail, errors first.

    Args:
        rungs: rungs of readiness that failed, with what was seen instead.
        launch: what serves. A rung can fail for many reasons: an issue that `lint` can find is
            named only when the launch has it.
    """
    possible = None if launch is None else {match.id for match in lint(launch)}
    found = []
    for issue in catalogue().values():
        failed = next((name for name in issue.rungs if name in rungs), None)
        if failed is not None and (possible is None or _may_be(issue, possible)):
            found.append(issue.match(rungs[failed]))
    return ordered(found)


def _may_be(issue: Issue, possible: set[str]) -> bool:
    found_by_lint = issue.rule or issue.when is not None
    return not found_by_lint or issue.id in possible
