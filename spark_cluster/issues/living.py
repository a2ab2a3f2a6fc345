"""The known issues behind what doctor's checks and the rungs of readiness saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_cluster.issues.entries import Issue, catalogue
from spark_cluster.issues.finding import Finding, ordered
from spark_cluster.issues.recognising import of_log

if TYPE_CHECKING:
    from spark_cluster.doctor.finding import Finding as Checked
    from spark_cluster.launch import Launch


def live(
    checks: Iterable[Checked], rungs: Mapping[str, str], launch: Launch | None
) -> list[Finding]:
    """Issues whose check of doctor fails or warns, or whose rung failed; errors first.

    Args:
        checks: doctor's findings, whatever their status.
        rungs: rungs of readiness that failed, with what was seen instead.
        launch: what serves; an issue that a plan can have is told only when it has it.
    """
    seen = {f"rung:{name}": (said, "") for name, said in rungs.items()}
    for check in checks:
        if check.status in ("fail", "warn"):
            seen.setdefault(check.id, (check.found, check.node))
    possible = None if launch is None else _of_plan(launch)
    found = []
    for issue in catalogue().values():
        sign = next((name for name in issue.live if name in seen), None)
        if sign is not None and _may_be(issue, sign, possible):
            found.append(of_log(issue, *seen[sign]))
    return ordered(found)


def _of_plan(launch: Launch) -> set[str]:
    from spark_cluster.issues import lint

    return {finding.id for finding in lint(launch)}


def _may_be(issue: Issue, sign: str, possible: set[str] | None) -> bool:
    """A rung can fail for many reasons: only those count that the launch has."""
    by_plan = issue.rule or issue.when is not None
    if possible is None or not by_plan or not sign.startswith("rung:"):
        return True
    return issue.id in possible
