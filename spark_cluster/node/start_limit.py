"""Stop a server that ends again and again, without the laptop and without `supervise`.

Docker and systemd start a program again for ever, and each start of an engine that fails may leave
memory behind, until sshd no longer answers (source: eugr-257). Docker's own `on-failure:N` counts
over the whole life of a container, does not start one again that ended with status 0, and starts
one at boot that was stopped by hand (moby: daemon/internal/restartmanager); so this counts restarts
within a window, and stops the program as a person does, which Docker respects at boot, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from spark_cluster.node import local_server
from spark_cluster.node.containers import RESTART_LIMIT, ContainerState

WINDOW_S = 3 * 3600.0
"""Seconds in which they count: a load that fails after half an hour is stopped as well, a server
that dies now and then is not."""

LOOK_S = 15.0
"""Seconds between two looks."""


@dataclass(frozen=True)
class Known:
    """The restarts of one program.

    Attributes:
        program: its id, which changes when `up` makes it again.
        counted: how often its runtime had started it again at the last look.
        at: moments of those within the window, in seconds of the monotonic clock.
    """

    program: str
    counted: int
    at: tuple[float, ...] = ()


def count(
    known: Known | None, seen: ContainerState, now: float, obstacle: Callable[[], str]
) -> Known:
    """Return the restarts after a look.

    What happened before the first look is not known by its moment and does not count. A start by
    hand lets the runtime count from 0, and so does a start of Docker.

    Args:
        obstacle: says what the server had to wait for, so that its restarts do not count.
    """
    if known is None or known.program != seen.id or seen.restarts < known.counted:
        return Known(seen.id, seen.restarts)
    recent = tuple(t for t in known.at if now - t < WINDOW_S)
    new = seen.restarts - known.counted
    return Known(seen.id, seen.restarts, recent + (now,) * (0 if new and obstacle() else new))


def names(config: Mapping[str, Any]) -> set[str]:
    """Return the names that servers have on this node, whether they are there or not."""
    server = str(config["server"])
    listed = local_server.output(config["servers"]) or ""
    units = (path.stem for path in Path(config["unit_folder"]).glob(f"{server}-*.service"))
    return {server, *listed.split(), *units}


def look_once(
    config: Mapping[str, Any], known: Mapping[str, Known], now: float
) -> dict[str, Known]:
    """Look at each server, and stop those that were started again too often.

    Restarts do not count while Ray lacks a node: the server serves again when the node is back.
    """
    found = {}
    for name in sorted(names(config)):
        seen = local_server.program(name, config)
        if not seen.id:  # Docker does not answer, or there is no such server
            continue
        obstacle = partial(local_server.ray_obstacle, seen, config)
        found[name] = count(known.get(name), seen, now, obstacle)
        if len(found[name].at) >= RESTART_LIMIT and seen.kept_up:
            _stop(name, seen)
    return found


def _stop(name: str, seen: ContainerState) -> None:
    argv = local_server.stop_command(name, seen.runtime)
    done = local_server.output(argv, local_server.ACT_S)
    said = "stopped" if done is not None else f"not stopped, {' '.join(argv)} failed"
    often = f"{RESTART_LIMIT} times within {WINDOW_S / 3600:g} hours"
    print(
        f"{name} was started again {often} and is {said}: its log says why it ends, and "
        "`spark-cluster up` starts it",
        flush=True,
    )


def main(config: str) -> int:
    """Look again and again, until the unit is stopped."""
    read = json.loads(Path(config).read_text())
    known: Mapping[str, Known] = {}
    while True:
        try:
            known = look_once(read, known, time.monotonic())
        except OSError as error:
            print(f"this look failed: {error}", flush=True)
        time.sleep(LOOK_S)
