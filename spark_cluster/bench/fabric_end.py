"""End a Ray that `bench fabric` started, on the nodes themselves, when its laptop has gone.

A timer of systemd on each node ends it after a limit that no measurement reaches. It ends the Ray
of its own run and no other: one that `up` or a later run has made since has another label.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from spark_cluster.bench.fabric_run import LIMIT_S, SLACK_S
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import MEASURING
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.resources.unit import FOLDER
from spark_cluster.runner.session import Session

UNIT = "spark-cluster-fabric-end"

START_S = 600.0
"""Seconds for starting and ending Ray's programs, besides the time in which its nodes join."""

END = """\
if command -v docker >/dev/null; then
    docker container ls --all --quiet --filter "name=^/?$1$" --filter "label=$2=$3" |
        xargs --no-run-if-empty docker rm --force
fi
if grep --quiet --no-messages --fixed-strings --regexp="\\"$2\\": \\"$3\\"" "$4"; then
    systemctl disable --now "$1.service"
fi
"""
"""Ends the Ray of a run, as a container or as a unit; the file of a unit has its labels in JSON."""

ONCE = r"""\
if command -v docker >/dev/null && docker container inspect "$1" >/dev/null 2>&1; then
    docker update --restart no "$1" >/dev/null || exit
fi
if test -e "$2"; then
    systemctl --quiet disable "$1.service"
fi
"""
"""Keeps Ray from coming back with the node: its timer would not."""

ARM = 'systemctl stop "$0.timer" 2>/dev/null; exec systemd-run --unit "$0" "$@"'


def limit_s(join_timeout_s: float) -> float:
    """Return the seconds after which Ray is ended.

    Args:
        join_timeout_s: of the recipe, for Ray's nodes.
    """
    return join_timeout_s + LIMIT_S + SLACK_S + START_S


def end_command(run: str) -> list[str]:
    """Return the command that ends the Ray of a run on a node."""
    return ["sh", "-c", END, "end", RAY, MEASURING, run, f"{FOLDER}/{RAY}.service"]


def arm(sessions: Iterable[Session], run: str, seconds: float) -> None:
    """Have each node end the Ray of a run after so many seconds, whatever becomes of the laptop.

    Raises:
        SparkClusterError: a node does not do so.
    """
    options = ["--quiet", "--collect", "--no-ask-password", f"--on-active={seconds:.0f}"]
    options += ["--timer-property=AccuracySec=10s", "--property=RuntimeMaxSec=120", "--"]
    for session in sessions:
        done = session.run(["sh", "-c", ARM, UNIT, *options, *end_command(run)])
        if done.status != 0:
            raise Failed(
                f"systemd-run: {done.stderr.strip()[:200] or f'status {done.status}'}",
                where=session.node,
                hint="`bench fabric` starts Ray only where the node ends it by itself",
            )


def start_no_more(sessions: Iterable[Session]) -> None:
    """Have no node start Ray again after a reboot or a power cut, of which no timer is left.

    Only when its nodes have joined: until then Ray's programs may have to be started again.

    Raises:
        SparkClusterError: a node does not do so.
    """
    for session in sessions:
        done = session.run(["sh", "-c", ONCE, "once", RAY, f"{FOLDER}/{RAY}.service"])
        if done.status != 0:
            raise Failed(
                f"Ray would start again with the node: {done.stderr.strip()[:200]}",
                where=session.node,
            )


def disarm(sessions: Iterable[Session]) -> None:
    """Take the timers back; one that stays finds nothing to end."""
    for session in sessions:
        with contextlib.suppress(SparkClusterError):
            session.run(["systemctl", "stop", f"{UNIT}.timer"])
