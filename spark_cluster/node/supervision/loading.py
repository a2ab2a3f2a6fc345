"""The memory of this node before and while a server loads that a program of ours has started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.node import load_guard, memory, own_program
from spark_cluster.node.supervision import look


def prepare(config: Mapping[str, Any]) -> None:
    """Give the page cache back and compact memory, where that is the GPU's, too."""
    if config["unified_memory"]:
        look.output(own_program.argv(memory.__name__, "/"), memory.RECLAIM_S)


def guard(server: str, programs: Sequence[str], limit_s: float, config: Mapping[str, Any]) -> None:
    """Guard the load of a server that has been started."""
    if config["unified_memory"]:
        told = load_guard.Settings(server, tuple(programs), limit_s)
        look.output(load_guard.start(told, os.environ.get("PATH", os.defpath)))


def reason(server: str) -> str:
    """Return why the load of a server was ended; empty where it was not."""
    try:
        found = load_guard.parse(Path(load_guard.reason_file(server)).read_text())
    except OSError:
        return ""
    return f"its load was ended before the node ran out of memory: {found}" if found else ""


def end(server: str, config: Mapping[str, Any]) -> None:
    """End the guard of a server, and forget its reason."""
    if config["unified_memory"]:
        look.output(["systemctl", "stop", load_guard.unit(server)])
        Path(load_guard.reason_file(server)).unlink(missing_ok=True)
