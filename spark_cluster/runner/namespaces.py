"""A node that is a set of namespaces on this machine, named by one of their processes."""

from __future__ import annotations

from pathlib import Path

from spark_cluster.errors import InvalidFile, Unreachable

SPACES = ("mount", "uts", "ipc", "net", "pid", "cgroup")
"""Those that are entered; of the others the node has the machine's."""

START_IT = "start it; nodes of the lab of GPUs: spark-cluster lab up --gpus"

START = 19
"""Place of a process's start among the fields of /proc/PID/stat after its name, proc(5)."""


def leader(node: str, file: Path, proc: Path = Path("/proc")) -> int:
    """Return the process that a file names: its number and, after it, perhaps its start.

    The start, in clock ticks since the machine's as in /proc/PID/stat, tells it from another
    process that has got the number since.

    Raises:
        Unreachable: it does not run.
        InvalidFile: the file holds something else.
    """
    try:
        words = file.read_text().split()
    except FileNotFoundError:
        raise _is_off(node) from None
    except OSError as error:
        raise Unreachable(f"{file} cannot be read: {error.strerror}", where=node) from None
    if not words:
        raise _is_off(node)
    if len(words) > 2 or not all(word.isdecimal() for word in words):
        raise InvalidFile(
            f"found {' '.join(words)[:60]!r}, expected the number of a process",
            where=str(file),
            hint=f"namespaces_of of {node} names this file",
        )
    try:
        stat = (proc / words[0] / "stat").read_text()
    except OSError:
        raise _is_off(node) from None
    if len(words) == 2 and stat.rpartition(")")[2].split()[START] != words[1]:
        raise _is_off(node)
    return int(words[0])


def enter(pid: int) -> list[str]:
    """Return what runs a program in a process's namespaces, in front of the program's own words."""
    return ["nsenter", f"--target={pid}", *(f"--{space}" for space in SPACES), "--"]


def _is_off(node: str) -> Unreachable:
    return Unreachable("is not running", where=node, hint=START_IT)
