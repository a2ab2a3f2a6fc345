"""The known issues behind what doctor's checks and the rungs of readiness saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_cluster.issues.entries import catalogue
from spark_cluster.issues.finding import Finding, ordered
from spark_cluster.issues.recognising import of_log

if TYPE_CHECKING:
    from spark_cluster.doctor.finding import Finding as Checked


def live(checks: Iterable[Checked], rungs: Mapping[str, str]) -> list[Finding]:
    """Issues whose check of doctor fails or warns, or whose rung failed; errors first.

    Args:
        checks: doctor's findings, whatever their status.
        rungs: rungs of readiness that failed, with what was seen instead.
    """
    seen = {f"rung:{name}": (said, "") for name, said in rungs.items()}
    for check in checks:
        if check.status in ("fail", "warn"):
            seen.setdefault(check.id, (check.found, check.node))
    return ordered(
        [
            of_log(issue, *seen[name])
            for issue in catalogue().values()
            for name in issue.live
            if name in seen and name == _first(issue.live, seen)
        ]
    )


def _first(names: list[str], seen: Mapping[str, object]) -> str | None:
    """The first of an issue's signs that was seen, so that it is told once."""
    return next((name for name in names if name in seen), None)
