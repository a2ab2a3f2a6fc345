"""A node goes away in the middle of a run, and comes back: after a reboot, or a cut connection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import Failed, NotBack, SparkClusterError, Unreachable

if TYPE_CHECKING:
    from spark_cluster.runner.connections import Connections

FIRST_TRY_S = 3.0
"""Seconds after the request to reboot until the node is looked for."""

PAUSES = (0.5, 5.0)
"""Seconds between two tries: at first, and at most."""

RECONNECT_S = 30.0
"""Seconds for which a lost node is looked for. Its agent frees the lock no later than 40 s after
the last word, of which 15 have passed by then."""

Tell = Callable[[str], None]


def reboot(connections: Connections, name: str, wanted: Mapping[str, Any], tell: Tell) -> float:
    """Reboot a connected node, and have it connected and locked again, what is known of it renewed.

    Args:
        wanted: the agent's `reboot`: the resource's `id`, the `boot_id` of now, `timeout_s`.
        tell: shows what is being waited for.

    Returns:
        Seconds until it was back.

    Raises:
        NotBack: it did not come back in time.
        Failed: it cannot be rebooted now, or another run has taken its lock.
    """
    if connections.nodes[name].is_this_machine:
        raise Failed(
            f"{wanted['id']}: this machine has to be rebooted, which would end this run",
            where=name,
            hint="sudo systemctl reboot, then run the same command again",
        )
    session = connections.session(name)
    if session.at_work:
        raise Failed(
            f"{wanted['id']}: other work of this run is going on on this node",
            where=name,
            hint="in the playbook, run nothing in parallel with what may reboot",
        )
    started = time.monotonic()
    tell("rebooting")
    with contextlib.suppress(Unreachable):  # it may be quicker than its answer
        session.request("reboot", id=wanted["id"], run=connections.run)
    connections.drop(name)
    time.sleep(min(FIRST_TRY_S, wanted["timeout_s"]))
    until = started + float(wanted["timeout_s"])
    missing = _wait(connections, name, until, tell, booted_before=wanted["boot_id"])
    if missing is not None:
        from spark_cluster.known_issues.entries import catalogue

        raise NotBack(
            f"it did not come back within {wanted['timeout_s']:g} s after the reboot: {missing}",
            where=name,
            hint=catalogue()["no-return-from-reboot"].fix_on(name),
        )
    return time.monotonic() - started


def reconnect(connections: Connections, name: str, lost: Unreachable, tell: Tell) -> float:
    """Have a node whose connection was lost connected and locked again.

    Returns:
        Seconds until it was back.

    Raises:
        Unreachable: `lost`, when it cannot be reached any more.
        Failed: another run has taken its lock.
    """
    started = time.monotonic()
    if _wait(connections, name, started + RECONNECT_S, tell) is not None:
        raise lost
    return time.monotonic() - started


def _wait(
    connections: Connections, name: str, until: float, tell: Tell, booted_before: str = ""
) -> str | None:
    """Try until the node is back and entered; otherwise why it is not."""
    pause, most = PAUSES
    while True:
        try:
            connections.reconnect(name, booted_before)
        except SparkClusterError as error:
            why = error.message
        else:
            try:
                connections.enter(name)
                return None
            except Unreachable as error:
                why = error.message
        if time.monotonic() + pause > until:
            connections.drop(name)
            return why
        tell(f"waiting for it to come back ({why})")
        time.sleep(pause)
        pause = min(pause * 1.5, most)
