"""Nodes that are sets of namespaces on this machine, each named by one of its processes.

`runner/dialer.py` reaches nodes by this module where an inventory has `namespaces_of`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from spark_cluster.config import extension
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import InvalidFile, Refused, Unreachable
from spark_cluster.runner.dialer import end
from spark_cluster.runner.node_connection import LocalConnection
from spark_cluster_lab import namespace_relay

SPACES = ("mount", "uts", "ipc", "net", "pid", "cgroup")
"""Those that are entered; of the others the node has the machine's."""

START_IT = "start it; nodes of the lab of GPUs: spark-cluster lab up --gpus"

START = 19
"""Place of a process's start among the fields of /proc/PID/stat after its name, proc(5)."""

PROC = Path("/proc")


@dataclass(eq=False)
class NamespacesConnection(LocalConnection):
    """Agents in the namespaces of a process of this machine.

    Args:
        namespaces_of: file with the number of that process.
    """

    _: KW_ONLY
    namespaces_of: Path

    def environment(self) -> dict[str, str]:
        """Return that of an agent on this machine with root's home: the caller has none there."""
        root = pwd.getpwuid(0)
        own = {"HOME": root.pw_dir, "LOGNAME": root.pw_name, "USER": root.pw_name}
        return super().environment() | own

    def enter(self) -> list[str]:
        return enter(leader(self.node, self.namespaces_of))


def leader(node: str, file: Path, proc: Path = PROC) -> int:
    """Return the process that a file names: its number and, after it, perhaps its start.

    The start, in clock ticks since the machine's as in /proc/PID/stat, tells it from another
    process that has got the number since. Root's programs run in the namespaces of that process,
    so the file is one that no other user could have written, and the process has the user
    namespace of this one: other user namespaces are made without being root.

    Raises:
        Unreachable: it does not run.
        InvalidFile: the file holds something else.
        Refused: others can write the file, or the process is in a user namespace of its own.
    """
    words = _words(node, file)
    try:
        stat = (proc / words[0] / "stat").read_text(errors="replace")
        own_users = _has_own_users(words[0], proc)
    except OSError:
        raise _is_off(node) from None
    if len(words) == 2 and stat.rpartition(")")[2].split()[START] != words[1]:
        raise _is_off(node)
    if own_users:
        raise Refused(
            f"process {words[0]}, which {file} names, is in a user namespace of its own; "
            "expected the machine's",
            where=node,
            hint="such namespaces are not entered as root: run that container without a user "
            "namespace (not rootless, no userns-remap), or reach the node over SSH",
        )
    return int(words[0])


def _words(node: str, file: Path) -> list[str]:
    """Return one or two numbers, which no other user could have written."""
    try:
        real = file.resolve(strict=True)
        for path in dict.fromkeys((real, file.absolute())):
            if problem := extension.foreign(path, Path("/")):
                found, advice = problem
                message = f"namespaces_of is not used: {found}; root enters what that file names"
                raise Refused(message, where=node, hint=advice)
        words = real.read_text(errors="replace").split()
    except FileNotFoundError:
        words = []
    except OSError as error:
        raise Unreachable(f"{file} cannot be read: {error.strerror}", where=node) from None
    if not words:
        raise _is_off(node)
    if len(words) > 2 or not all(word.isascii() and word.isdecimal() for word in words):
        raise InvalidFile(
            f"found {' '.join(words)[:60]!r}, expected the number of a process",
            where=str(file),
            hint=f"namespaces_of of {node} names this file",
        )
    return words


def _has_own_users(pid: str, proc: Path) -> bool:
    """Return whether a process is in another user namespace than this one.

    Only root may look at the namespaces of another user's process. Others compare which users it
    knows: all of the machine's are in no user namespace that was made without being root.
    """
    try:
        return (proc / pid / "ns/user").readlink() != (proc / "self/ns/user").readlink()
    except PermissionError:
        mine, theirs = ((proc / one / "uid_map").read_text().split() for one in ("self", pid))
        return mine != theirs


def enter(pid: int, proc: Path = PROC) -> list[str]:
    """Return what runs a program in a process's namespaces, in front of the program's own words.

    What the process can no longer have of root's capabilities, the program cannot have either.

    Raises:
        Unreachable: it does not run.
    """
    words = ["nsenter", f"--target={pid}", *(f"--{space}" for space in SPACES), "--"]
    try:
        lost = _bounds("self", proc) & ~_bounds(str(pid), proc)
    except OSError:
        raise Unreachable(f"process {pid} has ended", hint=START_IT) from None
    if lost:
        dropped = ",".join(f"-cap_{bit}" for bit in range(lost.bit_length()) if lost >> bit & 1)
        words += ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}", "--"]
    return words


def _bounds(pid: str, proc: Path) -> int:
    """Return the bounding set of a process's capabilities, a bit for each."""
    status = (proc / pid / "status").read_text(errors="replace")
    line = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    return int(line.split()[1], 16)


@contextlib.contextmanager
def forward_into(node: str, namespaces_of: Path, port: int) -> Iterator[int]:
    """Lead a free port of the loopback to one of the node's loopback, during the block.

    Args:
        node: its name, for errors.
        namespaces_of: file with the number of the process whose network namespace is the node's.

    Yields:
        The port of this machine.

    Raises:
        Unreachable: the node is not running, or its namespace cannot be entered.
    """
    target = leader(node, namespaces_of)
    enter = [] if os.geteuid() == 0 else ["sudo", "-n", "--"]
    relay = [sys.executable, "-I", namespace_relay.__file__, str(port)]
    argv = [*enter, "nsenter", "--net", f"--target={target}", "--", *relay]
    with socket.create_server((LOOPBACK, 0)) as listener:
        try:
            process = subprocess.Popen(
                argv,
                stdin=listener.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise Unreachable(
                f"{argv[0]} cannot be started: {error.strerror}", where=node
            ) from None
        found: int = listener.getsockname()[1]
    try:
        yield found
    finally:
        end(process, process.stdout)


def _is_off(node: str) -> Unreachable:
    return Unreachable("is not running", where=node, hint=START_IT)
