"""The supervision of a server on its head: what is installed there, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.document import Document, Hidden, derived
from spark_cluster.engine import proxy, runtime
from spark_cluster.engine.names import RAY, SERVER, TITLE
from spark_cluster.engine.ray import TOKEN_FILE
from spark_cluster.node import locks, paths, replies
from spark_cluster.node.supervision.policy import SupervisionState
from spark_cluster.resources.unit import FOLDER as UNIT_FOLDER
from spark_cluster.runner.session import Session
from spark_cluster.topology import Node

UNIT = "spark-cluster-supervise"
"""Its systemd unit."""

FOLDER = paths.SUPERVISION
"""Its program and its state."""

CONFIG = paths.SUPERVISE_SETTINGS
STATE = f"{FOLDER}/state/state.json"

PROGRAM = "spark_cluster.node.supervision.main"

START_LIMIT = "spark_cluster.node.supervision.start_limit"
"""The program that stops a server that ends again and again; it needs no supervision."""


def start_limit_configuration() -> dict[str, Any]:
    """Return what the program of the start limit is told."""
    known = _known()
    wanted = ("server", "unit_folder", "ray_token")
    return {**{name: known[name] for name in wanted}, "servers": runtime.servers_question()}


def configuration(limits: Mapping[str, Any], head: Node) -> dict[str, Any]:
    """Return what the program is told: names, labels and paths of this package, and its limits."""
    unified_memory = not head.facts.gpu_memory.of_gpu
    return {**_known(), "unified_memory": unified_memory, "limits": dict(limits)}


def _known() -> dict[str, Any]:
    """Return the names, labels and paths by which our servers are known on a node."""
    return {
        "folder": STATE.rpartition("/")[0],
        "server": SERVER,
        "ray": RAY,
        "unit_folder": UNIT_FOLDER,
        "lock": locks.RUN,
        "title": TITLE.pattern,
        "ray_token": TOKEN_FILE,
        "description": proxy.DESCRIPTION,
    }


@dataclass(frozen=True)
class SupervisionEvent:
    """Something that the supervision did or saw; `at` in seconds since 1970."""

    at: float
    text: str


@dataclass(frozen=True)
class Supervision(Document):
    """The report of a head's supervision.

    Attributes:
        installed: its unit is there.
        active: of the unit, as systemd says it.
        at_boot: it is started at boot.
        state: what it knows of the server.
        problems: what it cannot repair.
        events: the oldest first.
    """

    installed: bool
    active: str
    at_boot: bool
    state: Hidden[SupervisionState]
    problems: tuple[str, ...] = ()
    events: tuple[SupervisionEvent, ...] = ()
    phase = derived(str, "state.phase")
    since = derived(float, "state.since")
    reason = derived(str, "state.reason")
    restarts = derived(tuple[float, ...], "state.restarts")
    due = derived(float, "state.due")


def report(session: Session) -> Supervision:
    """Ask a head for its supervision."""
    asked = session.request(
        "gather",
        commands={
            "active": ["systemctl", "is-active", UNIT],
            "enabled": ["systemctl", "is-enabled", UNIT],
        },
        files={"state": STATE, "config": CONFIG},
    )
    outputs = {n: done["stdout"].strip() if done else "" for n, done in asked["commands"].items()}
    document = replies.decoded(asked["files"]["state"])
    problems, events = replies.at(document, "problems"), replies.at(document, "events")
    return Supervision(
        installed=asked["files"]["config"] is not None,
        active=outputs["active"] or "unknown",
        at_boot=outputs["enabled"] == "enabled",
        state=SupervisionState.from_dict(replies.at(document, "state")),
        problems=tuple(map(str, problems)) if isinstance(problems, list) else (),
        events=tuple(_events(events if isinstance(events, list) else [])),
    )


def _events(rows: list[Any]) -> list[SupervisionEvent]:
    return [
        SupervisionEvent(float(row["at"]), str(row["text"]))
        for row in rows
        if isinstance(replies.at(row, "at"), int | float) and replies.text_of(row.get("text"))
    ]
