"""A program of the runtime venv as systemd tells it, in the words that containers have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_cluster.node import paths
from spark_cluster.node.containers import ContainerState, parse_state, started_at
from spark_cluster.node.replies import decoded

FOLDER = paths.SYSTEMD_UNITS

DECLARED = "Declared="
"""Key of the section that systemd leaves alone (`[X-...]`), with what was declared as JSON."""

PROPERTIES = "ActiveState,Result,NRestarts,ExecMainStatus,ExecMainStartTimestamp"

SHOW = f'cat "$1" 2>/dev/null && exec systemctl show --timestamp=us+utc "$2" -p {PROPERTIES}'
"""The unit's file, which says what was declared, and what systemd knows; nothing without a file."""

_STATES = {
    "active": "running",
    "reloading": "running",
    "activating": "restarting",
    "failed": "exited",
    "inactive": "exited",
}
_MOMENT = re.compile(r"\w{3} (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) UTC")
_ENTRY = re.compile(r"^(\S+?)[+-]00:?00 \S+ [^:\n]*: ?(.*)$", re.MULTILINE)


def question(name: str, folder: str = "") -> list[str]:
    """Return the command that tells a unit's state; it fails where there is no such unit.

    Args:
        folder: of the units' files; empty for that of a node.
    """
    file = f"{folder or FOLDER}/{name}.service"
    return ["sh", "-c", SHOW, "unit", file, f"{name}.service"]


def declared(text: bytes) -> dict[str, Any]:
    """Return what a unit's file says that was declared: command, env, labels, spec."""
    for line in text.decode(errors="replace").splitlines():
        if line.startswith(DECLARED):
            found = decoded(line.removeprefix(DECLARED))
            return found if isinstance(found, dict) else {}
    return {}


def stamped(log: str) -> str:
    """Return a journal's text with time stamps as `docker logs --timestamps` writes them."""
    return _ENTRY.sub(r"\1Z \2", log)


def answered(done: Mapping[str, Any] | None, name: str = "") -> ContainerState:
    """Return the program of an answer of the agent's `gather` to `runtime.question`."""
    return parse(done["stdout"] if done is not None else "", name)


def parse(text: str, name: str = "") -> ContainerState:
    """Read the answer to either question: `docker container inspect NAME`, or a unit's.

    A unit sees all devices of the node, and may lock all memory.
    """
    if not text.lstrip().startswith("[Unit]"):
        return parse_state(text)
    known = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    found = declared(text.encode())
    active = known.get("ActiveState", "")
    labels, command, env = found.get("labels"), found.get("command"), found.get("env")
    return ContainerState(
        status=_STATES.get(active, active or "unknown"),
        exit_code=_number(known.get("ExecMainStatus", "")),
        restarts=_number(known.get("NRestarts", "")),
        labels={k: str(v) for k, v in labels.items()} if isinstance(labels, dict) else {},
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        # A stop by hand leaves the result of the run before.
        error=known.get("Result", "").replace("success", "") if active != "inactive" else "",
        name=name,
        id=str(found.get("spec", "")),
        started=started_at(_MOMENT.sub(r"\1T\2Z", known.get("ExecMainStartTimestamp", ""))),
        env={k: str(v) for k, v in env.items()} if isinstance(env, dict) else {},
        privileged=True,
        memlock=-1,
        runtime="venv",
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
