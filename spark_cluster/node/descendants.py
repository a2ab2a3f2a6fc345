"""The processes of a command: its session, its children and theirs, and what it left behind.

A child that began a session of its own is found by its parent; one whose parent has ended, too, by
a variable that every command gets. Only /proc/PID/stat is read of all processes: reading more of
one that hangs in a driver can hang itself.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

MARK = "SPARK_CLUSTER_COMMAND"
"""The variable that tells, in the environment of all that a command starts, which command."""

GONE = "ZX"
"""States of /proc/PID/stat of what has ended and only waits to be collected."""

KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the kernel's include/linux/sched.h, among the flags of /proc/PID/stat."""

UNKNOWN_S = 1.0
"""Seconds for which what cannot be known of processes is waited for before they are left alone:
one may be between two programs (execve), or in uninterruptible sleep, which every parent is in
for a moment that starts a child by vfork."""

BLOCKED = "D"
"""State of a process in uninterruptible sleep: the kernel or a driver holds it."""


class Process(NamedTuple):
    """A process as /proc/PID/stat tells it; `start` is in clock ticks since boot."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    start: int
    flags: int = 0

    @property
    def is_kernels(self) -> bool:
        """True if it is a kernel thread, which runs no program."""
        return bool(self.flags & KERNEL_THREAD)


def process(pid: int) -> Process | None:
    """Return the process with this number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:  # noqa: PTH123  (hundreds of them)
            text = source.read().decode(errors="replace")
    except OSError:
        return None
    name, _, tail = text.partition("(")[2].rpartition(")")
    fields = tail.split()
    state, parent, session, flags, start = (fields[number] for number in (0, 1, 3, 6, 19))
    return Process(pid, name, state, int(parent), int(session), int(start), int(flags))


def belonging(leader: Process, mark: str) -> list[Process]:
    """Return all living processes of a command.

    Args:
        leader: the process that was started, which leads a session; it may have ended, but must
            not have been collected, so that its number is not another's.
        mark: the value of MARK that it got.
    """
    others = [p for p in _listed() if p.start >= leader.start]
    mine: set[int] = set()
    added = {leader.pid}
    until = time.monotonic() + UNKNOWN_S
    while added:
        mine |= added
        added = _kin(others, mine) or {
            p.pid for p in others if p.pid not in mine and _is_marked(p, mark, until)
        }
    return [p for p in others if p.pid in mine and p.state not in GONE]


def below(pid: int) -> list[Process]:
    """Return all living processes that descend from one, or are in a session that one of these
    leads."""
    others = _listed()
    mine, added = set[int](), {pid}
    while added:
        mine |= added
        added = _kin(others, mine)
    return [p for p in others if p.pid in mine - {pid} and p.state not in GONE]


def _listed() -> list[Process]:
    """Return all processes."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [p for p in map(process, numbers) if p is not None]


def _kin(others: list[Process], mine: set[int]) -> set[int]:
    """Children of these, and who is in a session that one of these leads."""
    return {p.pid for p in others if p.pid not in mine and (p.parent in mine or p.session in mine)}


def _is_marked(found: Process, mark: str, until: float) -> bool:
    """Return whether it has the variable, the only evidence when its parent has ended."""
    now: Process | None = found
    while now is not None and now.state not in GONE and not now.is_kernels:
        if now.state != BLOCKED:
            environment = _read(found.pid, "environ")
            if environment or _read(found.pid, "cmdline"):
                return f"{MARK}={mark}".encode() in environment.split(b"\0")
        if time.monotonic() > until:
            break
        time.sleep(0.001)
        now = process(found.pid)
    return False


def _read(pid: int, name: str) -> bytes:
    """A file of /proc/PID; nothing when the process is gone, or not to be looked into."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as source:  # noqa: PTH123
            return source.read()
    except OSError:
        return b""
