"""The part of a run on the node next to the endpoint: what is sent there, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import Failed
from spark_cluster.loader import programs
from spark_cluster.node import own_program, paths
from spark_cluster.node.bench import measure
from spark_cluster.resources import Command, Directory, File, Resource
from spark_cluster.runner.session import Session

if TYPE_CHECKING:
    from spark_cluster.bench.node_files import NodeFiles

FOLDER = paths.BENCH
"""On the node; each run has a folder of its own, each server of it one below."""

ARCHIVE = "programs.pyz"
"""In a folder of a run: the programs that measure there. The name is not their hash: by its command
a unit is found again that was started by another version."""

MAIN, ASK = "spark_cluster.node.bench.measure", "spark_cluster.node.bench.ask"

MEASURED = 'test -e "$0" || exit 0; exec 9<"$0"; flock --shared --nonblock 9 || cat "$0"'
"""Prints the folder whose cells are being measured; nothing where none are."""

LARGEST_BYTES = 5 * 1024 * 1024
"""A larger file of a load generator is left on the node."""

MOST_BYTES = 1 << 30
"""Bytes that are taken from one server: the results of a suite are a hundredth of it."""

SLACK_S = 600.0
"""Seconds in addition to the limits of the cells: for waiting until the server answers."""


@dataclass(frozen=True)
class Job:
    """The cells of one server.

    Attributes:
        folder: on the node.
        health: URLs that answer with 200 while the servers are up.
        cells: for node/bench/measure.py: `id`, `runs`, `env`, `timeout_s` of a run, `as_root`.
        user: of the node, as whom load generators run.
        files: more files for the folder, by name.
    """

    folder: str
    health: tuple[str, ...]
    cells: tuple[Mapping[str, Any], ...]
    user: str
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """Seconds that all of it may take."""
        runs = sum(cell["timeout_s"] * len(cell["runs"]) for cell in self.cells)
        return float(runs) + SLACK_S

    @property
    def resources(self) -> list[Resource]:
        """The resources that measure them: files, and a unit that goes on without the laptop."""
        plan = {"health": self.health, "cells": self.cells, "user": self.user}
        parts = self.folder.removeprefix(f"{FOLDER}/").split("/")
        folders = ["/".join((FOLDER, *parts[:n])) for n in range(len(parts) + 1)]
        sent = {
            ARCHIVE: programs.archive(MAIN, ASK),
            **self.files,
            "plan.json": json.dumps(plan, indent=1).encode(),
        }
        return [
            *[Directory(folder, mode=0o755, owner="root") for folder in folders],
            *[File(f"{self.folder}/{name}", content=content) for name, content in sent.items()],
            Command(
                f"measure {self.folder.removeprefix(f'{FOLDER}/')}",
                command(self.folder, MAIN),
                # Not by its exit status: a run that was stopped is begun again.
                creates=f"{self.folder}/{measure.COMPLETE}",
                long=True,
                timeout_s=self.limit_s,
            ),
        ]


def command(folder: str, module: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs one of the programs in a folder of a run."""
    started = own_program.entry(f"{folder}/{ARCHIVE}", module)
    return ("python3", "-I", "-S", "-B", *started, folder, *words)


def measured(session: Session) -> str:
    """Return the folder whose cells are being measured on a node; empty where none are."""
    return session.run(["sh", "-c", MEASURED, measure.LOCK]).stdout.strip()


def stop(session: Session, folder: str) -> None:
    """Have the process that measures the cells of a folder end, the cell in progress included."""
    _do(session, "touch", f"{folder}/stop")


def may_go_on(session: Session, folder: str) -> None:
    """Take an earlier `stop` back."""
    _do(session, "rm", "-f", f"{folder}/stop")


def _do(session: Session, *argv: str) -> None:
    done = session.run(list(argv))
    if done.status != 0:
        raise Failed(f"{' '.join(argv)}: {done.stderr.strip() or f'status {done.status}'}")


def fetch(files: NodeFiles, folder: str, into: Path) -> list[str]:
    """Copy what was measured from the node; returns the files that are too large to copy.

    Raises:
        Failed: an answer of the node is not what was asked for.
    """
    too_large, total = [], 0
    for place in ("cells", "raw"):
        for name, size in sorted(files.sizes(f"{folder}/{place}").items()):
            if size > LARGEST_BYTES:
                too_large.append(f"{place}/{name}")
                continue
            total += size
            if total > MOST_BYTES:
                raise Failed(f"{folder} holds more than {MOST_BYTES >> 20} MiB of results")
            content = files.read(f"{folder}/{place}/{name}", size)
            path = into / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return too_large
