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
from spark_cluster.node.bench import worker
from spark_cluster.resources import Command, Directory, File, Resource
from spark_cluster.runner.session import Session

if TYPE_CHECKING:
    from spark_cluster.bench.node_files import NodeFiles

FOLDER = paths.BENCH
"""On the node; each run has a folder of its own, each server of it one below."""

LOCK = paths.BENCH_LOCK
"""Folder whose lock a run holds: at most one is measured on a node. Root's alone, as whoever can
open it can hold the lock."""

BUSY_TEXT = "another benchmark is running on this node"

LOCKED = f"""\
exec 9<"$0" || exit
flock --nonblock 9 || {{ echo "{BUSY_TEXT}" >&2; exit {worker.BUSY}; }}
user=$1
shift
test "$user" = root && exec "$@"
exec setpriv --reuid "$user" --regid "$(id --group "$user")" --init-groups -- "$@"
"""
"""Runs a program as a user who cannot open the lock that it holds."""

ARCHIVE = "programs.pyz"
"""In a folder of a run: the programs that measure there. The name is not their hash: by its command
a unit is found again that was started by another version."""

MAIN, ASK, VLLM_RUNS = (f"spark_cluster.node.bench.{name}" for name in ("main", "ask", "vllm_runs"))

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
        cells: for node/bench/worker.py: `id`, `argv`, `env`, `result`, `timeout_s`.
        links: paths below the folder to what they point to.
        user: of the node, as whom the load generator runs and whose the folders are; root only
            where it must be (`generators.owner`), and then nobody else writes to them.
        files: more files for the folder, by name.
    """

    folder: str
    health: tuple[str, ...]
    cells: tuple[Mapping[str, Any], ...]
    links: Mapping[str, str]
    user: str
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """Seconds that all of it may take."""
        return float(sum(cell["timeout_s"] for cell in self.cells)) + SLACK_S

    @property
    def resources(self) -> list[Resource]:
        """The resources that measure them: files, and a unit that goes on without the laptop."""
        plan = {
            "health": self.health,
            "cells": list(self.cells),
            "links": dict(self.links),
        }
        return [
            Directory(FOLDER, mode=0o755),
            Directory(LOCK, mode=0o700, owner="root"),
            *[Directory(folder, mode=0o755, owner=self.user) for folder in self._parents()],
            File(f"{self.folder}/{ARCHIVE}", content=own_programs()),
            *[File(f"{self.folder}/{name}", content=c) for name, c in self.files.items()],
            File(f"{self.folder}/plan.json", content=json.dumps(plan, indent=1).encode()),
            Command(
                f"measure {self.folder.removeprefix(f'{FOLDER}/')}",
                measure_command(self.folder, self.user, LOCK),
                # Not by its exit status: a run that was stopped is begun again.
                creates=f"{self.folder}/{worker.COMPLETE}",
                long=True,
                timeout_s=self.limit_s,
            ),
        ]

    def _parents(self) -> list[str]:
        parts = self.folder.removeprefix(f"{FOLDER}/").split("/")
        return ["/".join((FOLDER, *parts[: n + 1])) for n in range(len(parts))]


def own_programs() -> bytes:
    """Return the archive that a folder of a run gets."""
    return programs.archive(MAIN, ASK, VLLM_RUNS)


def measure_command(folder: str, user: str, lock: str) -> tuple[str, ...]:
    """Return the command that root runs to measure the cells of a folder as a user."""
    return ("sh", "-c", LOCKED, lock, user, *command(folder, MAIN))


def command(folder: str, module: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs one of the programs in a folder of a run."""
    started = own_program.entry(f"{folder}/{ARCHIVE}", module)
    return ("python3", "-I", "-S", "-B", *started, folder, *words)


def is_measuring(session: Session, folder: str) -> bool:
    """Return True while a process on the node measures the cells of a folder."""
    return _is_locked(session, f"{folder}/lock")


def is_busy(session: Session) -> bool:
    """Return True while a process on the node measures any cells of any run."""
    return _is_locked(session, LOCK)


def _is_locked(session: Session, path: str) -> bool:
    # Opened for reading: a lock that is not there yet must not be made, by root at that.
    done = session.run(["sh", "-c", 'exec flock --nonblock 9 9<"$0"', path])
    return done.status == 1 and not done.stderr.strip()


def stop(session: Session, folder: str, user: str) -> None:
    """Have the process that measures the cells of a folder end, the cell in progress included.

    Args:
        user: whose folder it is; root would follow links in it.
    """
    _do(session, user, "touch", f"{folder}/stop")


def may_go_on(session: Session, folder: str, user: str) -> None:
    """Take an earlier `stop` back."""
    _do(session, user, "rm", "-f", f"{folder}/stop")


def _do(session: Session, user: str, *argv: str) -> None:
    done = session.run(list(argv), user=user)
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
