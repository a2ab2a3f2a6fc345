"""Times whole processes, in turn, so that a busy spell of the machine hits all alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands.commands import Command

REPOSITORY = Path(__file__).resolve().parents[2]


class CommandError(Exception):
    """A command did not end as it should."""


@dataclass(frozen=True)
class Cost:
    """What one run cost.

    Attributes:
        wall: seconds from the start of the process to its end.
        cpu: user and system seconds, its children's included.
    """

    command: str
    wall: float
    cpu: float


@dataclass(frozen=True)
class Row:
    """All runs of one command.

    Attributes:
        least, median: wall seconds.
        cpu: the median, seconds.
        ratio: the median over that of its floor; None for a floor.
    """

    command: Command
    least: float
    median: float
    cpu: float
    ratio: float | None

    @property
    def met(self) -> bool | None:
        """Whether the quickest run takes no longer than wanted; None where nothing is wanted."""
        return None if self.command.wanted_s is None else self.least <= self.command.wanted_s


def run(command: Command) -> Cost:
    """Run a command once.

    Raises:
        CommandError: it ended with another status than those that are fine for it.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "",  # else each run would compile what it imports
    }
    with tempfile.TemporaryFile() as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in command.fine:
            output.seek(0)
            said = output.read().decode(errors="replace")[-2000:]
            raise CommandError(f"{command.name} ended with {process.returncode}:\n{said}")
    return Cost(command.name, wall, usage.ru_utime + usage.ru_stime)


def measure(commands: Iterable[Command], runs: int, report: Callable[[Cost], None]) -> list[Cost]:
    """Run all commands in turn, `runs` times, after one run each that is thrown away.

    That run fills caches, and lets `up` bring up what is not up.
    """
    chosen = list(commands)
    for command in chosen:
        run(command)
    costs = []
    for _ in range(runs):
        for command in chosen:
            costs.append(run(command))
            report(costs[-1])
    return costs


def rows(commands: Iterable[Command], costs: Iterable[Cost]) -> list[Row]:
    """Return one row for each command that was run."""
    walls: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}
    for cost in costs:
        walls.setdefault(cost.command, []).append(cost.wall)
        cpus.setdefault(cost.command, []).append(cost.cpu)
    medians = {name: statistics.median(times) for name, times in walls.items()}
    return [
        Row(
            command,
            min(walls[command.name]),
            medians[command.name],
            statistics.median(cpus[command.name]),
            medians[command.name] / medians[command.floor] if command.floor in medians else None,
        )
        for command in commands
        if command.name in walls
    ]
