"""What is timed, and how long each may take on a quiet machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.cli import COMMANDS

FINE = (0,)
FINDINGS = (0, 5)
"""`doctor` ends with 5 when it found something, which is none of this benchmark's business."""


@dataclass(frozen=True)
class Command:
    """One command line.

    Attributes:
        argv: the program's arguments; all that run when it has no inventory.
        wanted_s: seconds for the whole process, on a quiet machine; None for a floor.
        floor: name of the command that it is compared with.
        fine: exit statuses of a run that counts.
    """

    name: str
    argv: tuple[str, ...]
    wanted_s: float | None = None
    floor: str = ""
    fine: tuple[int, ...] = FINE


def commands(inventory: str, nodes_file: Path) -> list[Command]:
    """Return all that can be timed, the floors first.

    Args:
        inventory: for `--inventory`.
        nodes_file: for the floor that logs in to the nodes.
    """
    ours = (sys.executable, "-m", "spark_cluster")
    over = (*ours, "--inventory", inventory)
    version = ("version",) if "version" in COMMANDS else ("--version",)
    log_in = (sys.executable, "-m", "benchmarks.commands.floor", str(nodes_file))
    return [
        Command("floor: click", (sys.executable, "-c", "import click")),
        Command("floor: log in", log_in),
        Command("--help", (*ours, "--help"), 0.15, "floor: click"),
        Command("version", (*ours, *version), 0.25, "floor: click"),
        Command("history", (*over, "history"), 0.7, "floor: log in"),
        Command("exec true", (*over, "exec", "true"), 0.7, "floor: log in"),
        Command("vram", (*over, "vram"), 0.9, "floor: log in"),
        Command("status", (*over, "status"), 1.2, "floor: log in"),
        Command("doctor", (*over, "doctor"), 2.0, "floor: log in", FINDINGS),
        Command("up again", (*over, "up"), 1.8, "floor: log in"),
    ]
