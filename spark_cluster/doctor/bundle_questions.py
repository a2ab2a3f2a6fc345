"""Questions to a node for `logs --bundle`: logs, states, versions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_cluster.engine import runtime
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import UNIT
from spark_cluster.node import unit_state

if TYPE_CHECKING:
    from spark_cluster.runner.session import Session

LINES = 5000
"""Lines at the end of an engine's log."""

FIRST_BYTES = 500_000
"""Bytes at its beginning, where versions and flags are."""

ASKS_S = 30.0
"""Seconds that each command may take."""

_JOURNAL = ("journalctl", "--quiet", "--no-pager", "--utc", "--output", "short-iso")

INSPECT = "inspect"

_SEVERAL = shlex.join(runtime.servers_question())
"""Prints the names of the servers of several models."""

_LOG_OF_ONE = f'echo "==> $name"; docker logs --timestamps --tail {LINES} "$name" 2>&1'

QUESTIONS: Mapping[str, Sequence[str]] = {
    f"{SERVER}.log": runtime.log(SERVER, LINES),
    f"{SERVER}.beginning.log": runtime.beginning(SERVER, FIRST_BYTES),
    f"{RAY}.log": runtime.log(RAY, LINES),
    "spark-vllm-models.log": ("sh", "-c", f"for name in $({_SEVERAL}); do {_LOG_OF_ONE}; done"),
    INSPECT: ("sh", "-c", f"docker container inspect {SERVER} {RAY} $({_SEVERAL})"),
    "containers.txt": ("docker", "ps", "--all", "--no-trunc"),
    "images.txt": ("docker", "images", "--digests"),
    "docker-version.txt": ("docker", "version"),
    "units.txt": ("systemctl", "status", "--no-pager", "--lines", "0", "spark-*"),
    "failed-units.txt": ("systemctl", "--failed", "--no-pager"),
    "endpoint-journal.log": (*_JOURNAL, "--lines", "1000", "--unit", UNIT),
    "docker-journal.log": (*_JOURNAL, "--lines", "500", "--unit", "docker"),
    "kernel-journal.log": (*_JOURNAL, "--lines", "1000", "--dmesg"),
    "nvidia-smi.txt": ("nvidia-smi",),
    "compute-apps.csv": (
        "nvidia-smi",
        "--query-compute-apps=pid,process_name,used_memory",
        "--format=csv",
    ),
    "memory.txt": ("free", "--mebi", "--wide"),
    "disks.txt": ("df", "--human-readable", "--print-type"),
    "addresses.txt": ("ip", "-brief", "address"),
    "routes.txt": ("ip", "route"),
    "listeners.txt": ("ss", "--listening", "--tcp", "--numeric"),
    "rdma.txt": ("ibv_devinfo",),
    "system.txt": ("uname", "--all"),
}
"""Name in the archive to the command that is asked, in an order for readers."""


def ask(session: Session) -> dict[str, str]:
    """Return the texts of one node by their names; empty where a program is not there."""
    commands = {name: list(argv) for name, argv in QUESTIONS.items()}
    answer = session.request("gather", commands=commands, timeout=ASKS_S)
    found = {name: _text(answer["commands"].get(name)) for name in QUESTIONS}
    for name, late in answer["late"].items():
        found[name] = f"{found.get(name, '')}{late}\n"
    for name in (f"{SERVER}.log", f"{RAY}.log"):
        found[name] = unit_state.stamped(found[name])
    found[f"{INSPECT}.json"] = without_env_values(found.pop(INSPECT))
    return found


def _text(done: Mapping[str, Any] | None) -> str:
    """Return both outputs; None is a program that is not there or did not answer."""
    if done is None:
        return ""
    return f"{done['stdout']}{done['stderr']}"


def without_env_values(inspected: str) -> str:
    """Return what `docker container inspect` printed, with variables' names only.

    Text that is not understood is left out: nobody knows what is in it.
    """
    text, _, _ = inspected.partition("\nError")
    try:
        containers = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(containers, list):
        return ""
    for container in containers:
        config = container.get("Config") if isinstance(container, dict) else None
        if isinstance(config, dict) and "Env" in config:
            config["Env"] = _names(config["Env"])
    return json.dumps(containers, indent=2) + "\n" if containers else ""


def _names(variables: Any) -> list[str]:
    listed: Iterable[Any] = variables if isinstance(variables, list) else ()
    return [str(one).partition("=")[0] for one in listed]
