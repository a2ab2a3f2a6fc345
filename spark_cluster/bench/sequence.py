"""The servers of a run one after the other: each is brought up, measured, and taken down."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spark_cluster.bench import (
    describe,
    on_node,
    start_failures,
    startup_logs,
    telemetry_parts,
)
from spark_cluster.bench.expansion import Step
from spark_cluster.bench.run import (
    BenchRun,
    bring_up,
    fetch,
    left_out,
    measure,
    recorded,
    skipped,
    take_down,
    tool_of,
)
from spark_cluster.errors import Failed, Refused, SparkClusterError
from spark_cluster.runner.play import Play

WAIT_S = 2.0
"""Seconds between two looks whether the node still measures."""


def must_be_as_before(run: BenchRun, step: Step) -> None:
    """Raise Refused when the recipe is another one than that of the cells that were measured."""
    before, now = recorded(run, step), step.setup.served
    if before is not None and now is not None and before.recipe_text != describe.text_of(now):
        raise Refused(
            f"recipe {before.recipe} was changed after this run measured cells of {before.id}",
            hint="undo the change, or begin a new run",
        )


def is_done_there(play: Play, run: BenchRun, step: Step) -> bool:
    """Wait for what the node still measures of a step; True when nothing of it is left then.

    Raises:
        Failed: another run is being measured.
    """
    session, folder = play.session(play.head), run.on_node(step)
    if on_node.is_measuring(session, folder):
        play.note("the node is still measuring; this waits for it")
    while on_node.is_measuring(session, folder):
        time.sleep(WAIT_S)
    if on_node.is_busy(session):
        raise Failed(
            "another run is being measured there",
            where=play.head.name,
            hint="`spark-cluster bench attach` or `bench stop` with the folder of that run",
        )
    if recorded(run, step) is None:
        return False
    fetch(play, run, step)
    return not run.left(step)


def go_on(
    play: Play, run: BenchRun, *, keep: bool = False, stop_at_first_failure: bool = False
) -> None:
    """Measure all that has no result yet.

    A server that does not start fails its cells, with the reason, and the next one is brought up.

    Args:
        keep: the last server stays up.
        stop_at_first_failure: a server that does not start ends the run; its cells have no result
            then, and are measured when the run is continued.

    Raises:
        SparkClusterError: it cannot go on; the record says `failed`, and can be gone on with.
    """
    reasons = {id: why for step in run.pending for id, why in left_out(step).items()}
    if not play.check:
        tool_of(play)  # refused before a server is started
        run.add([skipped(c, reasons[c.id]) for c in run.expansion.cells if c.id in reasons])
    steps = [s for s in run.pending if not all(cell.id in reasons for cell in s.cells)]
    try:
        _measure_steps(play, run, steps, keep=keep, stop_at_first_failure=stop_at_first_failure)
    except KeyboardInterrupt:
        play.note(f"the node goes on measuring: `bench attach {run.folder}`, or `bench stop`")
        raise
    except (SparkClusterError, OSError):
        if not play.check:
            run.end("failed")
        raise
    finally:
        if not play.check:
            telemetry_parts.merge(run.folder)
    if play.check:
        return
    left = sum(len(run.left(step)) for step in run.pending)
    run.end("failed" if left else "complete")
    if left:
        raise Failed(f"{left} cells have no result", hint="`bench attach` measures them")


def _measure_steps(
    play: Play, run: BenchRun, steps: Sequence[Step], *, keep: bool, stop_at_first_failure: bool
) -> None:
    for number, step in enumerate(steps, 1):
        play.note(f"server {number} of {len(steps)}: {step.setup.id}, {len(step.cells)} cells")
        try:
            _measure_step(play, run, step)
        except start_failures.NotStarted as failure:
            if stop_at_first_failure:
                raise failure.error from None
            _give_up(play, run, step, failure.error)
            continue
        following = steps[number] if number < len(steps) else None
        if play.check or (following is None and keep):
            continue
        # Every turn of a pair has a start of its own.
        if following is None or _server(following) != _server(step):
            take_down(play, run, step)


def _server(step: Step) -> tuple[str, int]:
    return step.setup.id, step.turn


def _measure_step(play: Play, run: BenchRun, step: Step) -> None:
    """Bring the server of a step up and measure its cells; nothing where they are done already.

    Raises:
        NotStarted: the server does not start.
        SparkClusterError: the run cannot go on.
    """
    if not play.check:
        must_be_as_before(run, step)
        if is_done_there(play, run, step):
            return
    before = play.seconds.get("load", 0.0)
    try:
        served = bring_up(play, step)
    except SparkClusterError as error:
        if play.check or not start_failures.is_of_server(play, error):
            raise
        raise start_failures.NotStarted(error) from error
    if served is None:
        return
    loaded = play.seconds.get("load", 0.0) - before
    with play.stage("measure"):
        measure(play, run, step, served, round(loaded, 1))


def _give_up(play: Play, run: BenchRun, step: Step, error: SparkClusterError) -> None:
    """Fail the cells of a server that does not start.

    They have no result before the server is gone and its memory is free: where that cannot be
    seen, the cluster is at fault, and the run ends with these cells still to be measured.
    """
    reason = start_failures.reason(error)
    play.note(f"{step.setup.id}: {reason}", warning=True)
    logs = startup_logs.keep(play, run.folder, run.raw(step).name)
    take_down(play, run, step)
    recipe = step.setup.served
    if recorded(run, step) is None and recipe is not None:
        run.add_setup(describe.setup_not_started(play, step.setup, recipe, logs), ())
    run.add([start_failures.failed(cell, reason, logs) for cell in run.left(step)])
