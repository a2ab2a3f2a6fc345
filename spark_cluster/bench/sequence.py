"""The servers of a run one after the other: each is brought up, measured, and taken down."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spark_cluster.bench import describe, generators, on_node
from spark_cluster.bench.expansion import Step, result
from spark_cluster.bench.record import RecordedCheck, printable
from spark_cluster.bench.references import predictions
from spark_cluster.bench.steps import BenchRun, is_done_there, load_base, measure, settings_of
from spark_cluster.config.engines import words
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime, verify
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.launches import previous_server_of
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION, models_of
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.result import Served
from spark_cluster.errors import (
    DoesNotFit,
    Failed,
    Refused,
    SparkClusterError,
    Unreachable,
    VerificationFailed,
)
from spark_cluster.node import containers
from spark_cluster.node.containers import RECIPE, ContainerState
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.output import counted
from spark_cluster.node.values import mask
from spark_cluster.runner.play import Play

# The server of a step: brought up, its answers checked, and taken down.
#
# Where it does not start: whether it or the cluster is at fault, and the log of its start, which is
# kept in any case, bounded and without secrets.

STAGES = frozenset({"load", "verify"})
"""Stages of `up` in which the engine runs: before them the nodes are prepared, and what fails there
fails for every server."""

MEASURE = "measure"
"""The stage in which the node measures, with or without the laptop."""

LONGEST_REASON = 400
"""Characters of a reason."""

SHORTEST = 1024
"""Tokens of the shortest prompt of the context check."""

LOGS = "logs"
"""Folder below that of a run."""

LOG_BYTES = 1 << 20
"""Of each program, from its beginning: a start prints less than a third of it."""

_NOTHING = re.compile(r"Error[^\n]*No such container[^\n]*\n?|[^\n]*docker: [^\n]*not found\n?")
"""What is printed instead of a log where there is no such program."""
LONGEST_NOTHING = 1000
"""Characters of it; a program may print anything, also what is slow to compare."""


def bring_up(play: Play, step: Step) -> Served | None:
    """Bring the step's server up with the playbook `up`, verified; None in check mode.

    Its memory under load is read while its cells are measured.
    """
    setup = step.setup
    if setup.served is None:
        raise Failed(f"recipe {setup.recipe} was not read")
    deployment = resolve(
        setup.served, play.inventory, play.nodes, setup.tp, replicas=setup.replicas
    )
    if setup.replicas > 1:
        deployment = replace(deployment, endpoint=on_loopback(deployment.endpoint))
    playbook = play.project.load_playbook("up")
    served: Served | None = playbook.function(play, deployment=deployment, load=False)
    return served


def on_loopback(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint of replicas for the load generator next to it.

    It asks for no key and has no TLS, as a single server's own port on the loopback.
    """
    return replace(endpoint, host=LOOPBACK, api_key=None, tls=None, pem=None)


def checks_of(play: Play, run: BenchRun, step: Step, served: Served) -> tuple[RecordedCheck, ...]:
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
            play, server, plan.recipe, verify.CheckSelection(), context=max(longest, SHORTEST)
        )
    for one in found.failed:
        play.note(f"{step.setup.id}: {one.title}: {one.found}", warning=True)
    return tuple(RecordedCheck.model_validate(one, from_attributes=True) for one in found.verdicts)


def take_down(play: Play, run: BenchRun, step: Step) -> None:
    """Stop the server, verify that its memory is free again, and record that."""
    stopped = play.project.load_playbook("down").function(play)
    if stopped is not None:
        run.add_vram(step.setup.id, describe.readings(stopped.now, "after"))


# -- a start ---------------------------------------------------------------------------------------


def is_at_fault(play: Play, error: SparkClusterError) -> bool:
    """Return whether the server is at fault that `up` failed, so that others may start.

    A node that is lost, an interrupt, a file that is wrong or a node that cannot be prepared is
    not.
    """
    if isinstance(error, DoesNotFit):
        return True
    if isinstance(error, Unreachable) or not isinstance(error, Failed | VerificationFailed):
        return False
    return play.failed_stage in STAGES and not play.out


def not_started(error: SparkClusterError) -> str:
    """Return why its cells failed, in one line."""
    line = " ".join(printable(error.message).split())
    short = line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."
    return f"the server did not start: {short}"


def keep_logs(play: Play, run: Path, name: str) -> tuple[str, ...]:
    """Copy the beginning of the logs of all nodes; what a node does not give is left out.

    Args:
        run: folder of the run.
        name: of the step, with which the files' names begin.

    Returns:
        The paths of the files, below the folder of the run.
    """
    kept = []
    for node in play.nodes:
        for program in (SERVER, RAY):
            path = f"{LOGS}/{name}-{node.name}-{program}.log"
            text = _read(play, node, program)
            if text:
                make_folder(run / LOGS, 0o755)
                write_file(run / path, text.encode("utf-8", "replace"), 0o644)
                kept.append(path)
    return tuple(kept)


def _read(play: Play, node: Node, program: str) -> str:
    """Return the beginning of a log; empty where there is none."""
    text = ""
    with contextlib.suppress(SparkClusterError):  # no reason not to measure
        text = runtime.read_beginning(play.session(node), program, LOG_BYTES)
    if len(text) < LONGEST_NOTHING and _NOTHING.fullmatch(text):
        return ""
    return printable(str(mask(text, play.secrets)))


def must_be_as_before(run: BenchRun, step: Step) -> None:
    """Raise Refused when the recipe is another one than that of the cells that were measured."""
    before, now = run.recorded(step), step.setup.served
    if before is not None and now is not None and before.recipe_text != describe.text_of(now):
        raise Refused(
            f"recipe {before.recipe} was changed after this run measured cells of {before.id}",
            hint="undo the change, or begin a new run",
        )


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
    if not play.check:
        settings_of(play, generators.of(run.suite))  # refused before a server is started
        left_out = [result(c, reasons=[c.skip]) for c in run.expansion.cells if c.skip]
        run.add([cell.model_copy(update={"status": "skipped"}) for cell in left_out])
    steps = [step for step in run.pending if step.measurable]
    try:
        measured = [step for step in run.expansion.steps if run.recorded(step) is not None]
        if measured and not (steps or keep or play.check or run.record.status == "complete"):
            _take_down_measured(play, run, measured[-1])
        _measure_steps(play, run, steps, keep=keep, stop_at_first_failure=stop_at_first_failure)
    except KeyboardInterrupt:
        if not play.check:
            play.after_interrupt = _after_interrupt(run, measures=play.failed_stage == MEASURE)
        raise
    except (SparkClusterError, OSError):
        if not play.check:
            run.end("failed")
        raise
    finally:
        if not play.check:
            on_node.merge(run.folder)
    if not play.check:
        _end(run)


def _after_interrupt(run: BenchRun, *, measures: bool) -> str:
    """Return what to do after Ctrl-C."""
    text = f"`spark-cluster bench attach {run.folder}` continues the run"
    if measures:
        stop = f"`spark-cluster bench stop {run.folder}`"
        return f"the node goes on measuring: {text}, {stop} ends it"
    return f"{text}, `spark-cluster down` ends what was started"


def _end(run: BenchRun) -> None:
    """End a run; raises Failed where cells have no result."""
    left = sum(len(run.left(step)) for step in run.pending)
    run.end("failed" if left else "complete")
    if left:
        missing = f"no result: {counted(left, 'cell')}"
        raise Failed(missing, hint="`bench attach` measures what is missing")


def _measure_steps(
    play: Play, run: BenchRun, steps: Sequence[Step], *, keep: bool, stop_at_first_failure: bool
) -> None:
    for number, step in enumerate(steps, 1):
        play.note(
            f"server {number} of {len(steps)}: {step.setup.id}, {counted(len(step.cells), 'cell')}"
        )
        here = _measure_step(play, run, step, stop_at_first_failure=stop_at_first_failure)
        if here is None:
            continue
        following = steps[number] if number < len(steps) else None
        if play.check or (following is None and keep):
            continue
        server = (step.setup.id, step.turn)  # every turn of a pair has a start of its own
        if following is None and not here:
            _take_down_measured(play, run, step)
        elif following is None or (following.setup.id, following.turn) != server:
            take_down(play, run, step)


def _take_down_measured(play: Play, run: BenchRun, step: Step) -> None:
    """Take a server down whose cells were measured while the laptop was away.

    What was brought up since then stays.
    """
    answer = play.session(play.head).request(
        "gather", commands={SERVER: runtime.question(SERVER)}, files={"endpoint": DESCRIPTION}
    )
    running = containers.answered(answer["commands"][SERVER])
    other = ", ".join(one.model for one in models_of(answer["files"]["endpoint"]))
    if running.status != "absent" and not is_of(step, running):
        other = running.labels.get(RECIPE, "another server")
    if other:
        play.note(f"{other} serves now, which is not of this run: it stays up")
        return
    take_down(play, run, step)  # where nothing serves: what is left of it


def is_of(step: Step, running: ContainerState) -> bool:
    """True if a server is that of a step: its recipe, its size and its arguments."""
    previous, recipe, tp = previous_server_of(running), step.setup.served, step.setup.tp
    if previous is None or recipe is None or (previous.recipe, previous.tp) != (recipe.name, tp):
        return False
    return set(words(recipe.flags(tp))) <= set(running.command)


def _measure_step(
    play: Play, run: BenchRun, step: Step, *, stop_at_first_failure: bool
) -> bool | None:
    """Bring the server of a step up and measure its cells; nothing where they are done already.

    Returns:
        Whether it was brought up now; None where it did not start, so that nothing of it is left.

    Raises:
        SparkClusterError: the run cannot go on.
    """
    if not play.check:
        must_be_as_before(run, step)
        if is_done_there(play, run, step):
            return False
    before = play.seconds.get("load", 0.0)
    try:
        served = bring_up(play, step)
    except SparkClusterError as error:
        if play.check or stop_at_first_failure or not is_at_fault(play, error):
            raise
        _give_up(play, run, step, error)
        return None
    if served is not None:
        startup_s = round(play.seconds.get("load", 0.0) - before, 1)
        _record_server(play, run, step, served, startup_s)
        with play.stage(MEASURE):
            measure(play, run, step, served.deployment)
    return True


def _record_server(play: Play, run: BenchRun, step: Step, served: Served, startup_s: float) -> None:
    """Record what the server is, what runs on its nodes, what the plan predicts for it, and the
    checks of its answers.

    Args:
        startup_s: seconds that it took to load.
    """
    checks = checks_of(play, run, step, served)
    keys = [cell.key for cell in run.expansion.cells if cell.setup == step.setup.id]
    caching = run.suite.settings.prefix_caching
    predicted = predictions(play.project, step.setup, keys, prefix_caching=caching)
    logs = keep_logs(play, run.folder, run.raw(step).name)
    setup = describe.setup_of(play, step.setup, served, startup_s, logs)
    before = run.recorded(step)
    if before is not None:  # of an earlier turn, or before the run was interrupted
        kept = tuple(dict.fromkeys((*before.logs, *setup.logs)))
        setup = setup.model_copy(update={"vram": (*before.vram, *setup.vram), "logs": kept})
    setup = setup.model_copy(update={"predictions": predicted, "checks": checks})
    run.add_setup(setup, describe.nodes_of(play, served))
    run.add_version(served.versions.get("vllm", ""))
    base = load_base(served.deployment)
    run.add_round_trip(describe.round_trip_ms(play.session(play.head), base))


def _give_up(play: Play, run: BenchRun, step: Step, error: SparkClusterError) -> None:
    """Fail the cells of a server that does not start.

    They have no result before the server is gone and its memory is free: where that cannot be
    seen, the cluster is at fault, and the run ends with these cells still to be measured.
    """
    reason = not_started(error)
    play.note(f"{step.setup.id}: {reason}", warning=True)
    logs = keep_logs(play, run.folder, run.raw(step).name)
    take_down(play, run, step)
    recipe = step.setup.served
    if run.recorded(step) is None and recipe is not None:
        run.add_setup(describe.setup_not_started(play, step.setup, recipe, logs), ())
    failed = [result(cell, reasons=[reason]) for cell in run.left(step)]
    run.add([cell.model_copy(update={"raw": logs}) for cell in failed])
