"""The checks of a server's answers before it is measured: a fast wrong answer is no result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.bench.record import CheckResult
from spark_cluster.bench.run import BenchRun
from spark_cluster.engine import verify

if TYPE_CHECKING:
    from spark_cluster.bench.expansion import Step
    from spark_cluster.engine.result import Served
    from spark_cluster.runner.play import Play

SHORTEST = 1024
"""Tokens of the shortest prompt of the context check."""


def checks_of(play: Play, run: BenchRun, step: Step, served: Served) -> tuple[CheckResult, ...]:
    """Return the checks of a step's server, those of the record where it has them; none where the
    suite does not want any.

    The context check goes as far as the longest load of the suite, not to the server's stated
    length, which can take longer than all the cells.

    Raises:
        SparkClusterError: the head was lost.
    """
    before = run.recorded(step)
    if before is not None and before.checks:
        return before.checks
    if not run.suite.verify:
        return ()
    plan = served.server
    flags = {flag: str(value) for flag, value in plan.launch.args.items()}
    server = verify.RunningServer(
        served.endpoint, plan.recipe.name, step.setup.tp, plan.recipe.kind, flags
    )
    longest = max(cell.key.depth + cell.key.prompt for cell in run.expansion.cells)
    with play.stage("checks"):
        found = verify.verify(
            play, server, plan.recipe, verify.Selection(), context=max(longest, SHORTEST)
        )
    for one in found.failed:
        play.note(f"{step.setup.id}: {one.title}: {one.found}", warning=True)
    return tuple(
        CheckResult(
            id=one.id,
            title=one.title,
            streamed=one.streamed,
            status=one.status,
            found=one.found,
            seconds=one.seconds,
        )
        for one in found.verdicts
    )
