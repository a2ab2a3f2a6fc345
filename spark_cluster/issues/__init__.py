"""Known issues: the catalogue, and how they are found in a plan, in logs, on a live server.

lint(launch)           in a launch, before anything is started
explain_logs(sources)  in logs, the earliest real error first
known_for(text)        the issue that explains one line of a log
live(checks)           in what doctor saw of a live server
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_cluster.doctor.finding import Finding as Checked
    from spark_cluster.facts.model import Facts
    from spark_cluster.issues.explaining import Explanation
    from spark_cluster.issues.finding import Finding
    from spark_cluster.issues.reading import Source
    from spark_cluster.launch import Launch
    from spark_cluster.planning.geometry import Geometry


def lint(
    launch: Launch, geometry: Geometry | None = None, facts: Sequence[Facts] = ()
) -> list[Finding]:
    """Every known issue that a launch has, errors first.

    Args:
        geometry: the model's shape, when it is known; some rules need it.
        facts: of the nodes, when they can be reached; some figures become certain with them.
    """
    from spark_cluster.issues.case import Case
    from spark_cluster.issues.rules import lint as search

    return search(Case(launch, geometry, tuple(facts)))


def explain_logs(sources: Iterable[Source]) -> Explanation:
    """What logs say: known issues, the earliest real error first, and what is healthy.

    Raises:
        InvalidFile: a file cannot be read, or is no text.
    """
    from spark_cluster.issues.explaining import explain

    return explain(sources)


def known_for(text: str, before: str = "") -> Finding | None:
    """The known issue that explains an error's text, or a line of a log; None when none does.

    Args:
        before: lines just before it, of the same process; a traceback stands there.
    """
    from spark_cluster.issues.recognising import known_for as search

    return search(text, before)


def live(
    checks: Iterable[Checked] = (),
    rungs: Mapping[str, str] | None = None,
    launch: Launch | None = None,
) -> list[Finding]:
    """The known issues that a live server shows.

    Args:
        checks: doctor's findings.
        rungs: rungs of readiness that failed, with what was seen instead.
        launch: what serves, where it is known: of several causes only those that it can have.
    """
    from spark_cluster.issues.living import live as search

    return search(checks, rungs or {}, launch)
