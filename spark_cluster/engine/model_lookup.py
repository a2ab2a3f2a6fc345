"""Looking a model up on the hub before it is served, within a limit in time."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models import known_models
from spark_cluster.models.hub import Hub, cached, online
from spark_cluster.planning.planner import Planner

if TYPE_CHECKING:
    from spark_cluster.planning.subject import Subject
    from spark_cluster.runner.play import Play

LIMIT_S = 30.0
"""Seconds that `up` waits for the hub; a plan is worth no more of its time."""


def hub_for(play: Play, subject: Subject, *, offline: bool = False) -> Hub:
    """Return where a plan finds its model: what is kept of it, else the hub, asked here.

    Nothing fails for it: without an answer in time there is a note, and what is kept is used.
    HF_HUB_OFFLINE or `offline` forbids asking.
    """
    kept = cached()
    if offline:
        return kept
    with contextlib.suppress(UsageError, InvalidFile):
        Planner(play.project, kept).geometry(subject)
        return kept
    asked = online(tuple(known_models()))

    def look_up() -> None:
        with contextlib.suppress(UsageError, InvalidFile):
            Planner(play.project, asked).geometry(subject)

    asking = threading.Thread(target=look_up, daemon=True, name="hub")
    asking.start()
    asking.join(LIMIT_S)
    if asking.is_alive():
        play.note(
            f"the hub has not described {subject.launch.model} within {LIMIT_S:g} s: planned "
            "without it"
        )
        return kept
    return asked
