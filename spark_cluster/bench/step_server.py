"""The server of a step: brought up, its answers checked, and taken down.

Where it does not start: whether it or the cluster is at fault, and the log of its start, which is
kept in any case, bounded and without secrets.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path

from spark_cluster.bench import describe
from spark_cluster.bench.expansion import Step
from spark_cluster.bench.record import CheckResult
from spark_cluster.bench.run import BenchRun
from spark_cluster.bench.run_folder import printable
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.engine import logs, verify
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.result import Served
from spark_cluster.errors import (
    DoesNotFit,
    Failed,
    SparkClusterError,
    Unreachable,
    VerificationFailed,
)
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.masking import mask
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

STAGES = frozenset({"load", "verify"})
"""Stages of `up` in which the engine runs: before them the nodes are prepared, and what fails there
fails for every server."""

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
    return tuple(CheckResult.model_validate(one, from_attributes=True) for one in found.verdicts)


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
        text = logs.read_beginning(play.session(node), program, LOG_BYTES)
    if _NOTHING.fullmatch(text):
        return ""
    return printable(str(mask(text, play.secrets)))
