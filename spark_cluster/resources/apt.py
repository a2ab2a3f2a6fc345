"""apt on a node: run with patience for its locks, and its failures in plain words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from spark_cluster.node import units
from spark_cluster.node.host import Completed, Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import like

APT_S = 3600.0
LOCK_WAIT_S = 120.0
OFFLINE = "check the node's network, DNS and proxy (`apt-get update` on the node shows more)"

_LISTS = ("/var/lib/apt/periodic/update-success-stamp", "/var/lib/apt/lists/partial")
_ENV = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l"}
_OPTIONS = (
    *("-y", "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S:.0f}"),
    *("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"),
)
_LOCKED = re.compile(
    r"^E: (?:Could not get lock|Unable to acquire|Unable to lock) .*$"
    r"|^dpkg: error: .* locked by another process.*$",
    re.M,
)
_HOLDER = re.compile(r"Could not get lock (\S+?)\. It is held by process (\d+) \(([^)]*)\)")
PACKAGE = like(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?", "the name of a Debian package")
"""Checks a package's name, perhaps with its architecture."""

_STEPS = ("Get:", "Unpacking ", "Setting up ", "Removing ", "Processing triggers ")
"""How the lines begin that say how far apt is."""

_WHY = (
    (
        r"enough free space|No space left",
        "the disk is full",
        "`df -h` on the node; `apt-get clean` frees downloaded packages",
    ),
    (
        r"404 +Not Found",
        "the mirror no longer has it",
        "the mirror is being updated: wait some minutes and run again",
    ),
    (
        r"Temporary failure resolving|Could not resolve|Could not connect|Unable to connect"
        r"|connection timed out|Failed to fetch",
        "the package mirror cannot be reached from this node",
        OFFLINE,
    ),
    (
        r"Unmet dependencies|--fix-broken",
        "packages that are there do not fit together",
        "`apt-get --fix-broken install` on the node, and read what it is about to do",
    ),
    (
        r"need to be removed but remove is disabled",
        "it would remove packages that are there",
        "remove them first with Package(..., state='absent') if that is meant",
    ),
)


def apt(host: Host, *arguments: str) -> Completed:
    """Run `apt-get ...`, after a repair of an interrupted dpkg when it asks for one.

    It goes on when the connection is cut, and the next run waits for it. apt itself waits for
    dpkg's lock, but not for that of its lists: that is waited for here.
    """
    reported: set[str] = set()

    def on_output(line: str) -> None:
        holder = _holder(line)
        if holder and holder not in reported:
            reported.add(holder)
            host.progress(f"waiting for {holder}")
        elif line.startswith(_STEPS):
            host.progress(line)

    def run() -> Completed:
        argv = ("apt-get", *_OPTIONS, *arguments)
        return units.run(host, host.current, argv, env=_ENV, timeout=APT_S, on_output=on_output)

    done = patiently(host, run)
    if "dpkg --configure -a" in done.stderr:
        host.progress("dpkg was interrupted earlier: repairing with dpkg --configure -a")
        argv = ("dpkg", "--force-confdef", "--force-confold", "--configure", "-a")
        repaired = units.run(host, host.current, argv, env=_ENV, timeout=APT_S)
        repaired.check("dpkg was interrupted earlier, and repairing it failed")
        host.journal.record(host.current, "repaired", what="an interrupted dpkg")
        done = run()
    return done


def patiently(host: Host, run: Callable[[], Completed]) -> Completed:
    """Run it again while another package manager holds the lock, for LOCK_WAIT_S at most."""
    until = time.monotonic() + LOCK_WAIT_S
    done = run()
    while _LOCKED.search(done.stderr) and time.monotonic() < until:
        if host.processes.cancelled.is_set():
            break
        time.sleep(2)
        done = run()
    return done


def update(host: Host) -> str:
    """Refresh apt's lists; one source that fails is reported, not fatal: others may suffice."""
    host.progress("apt-get update")
    done = apt(host, "update")
    if _LOCKED.search(done.stderr):
        explained(done, "apt-get update")
    for line in done.stderr.splitlines():
        host.progress(line)
    return done.stderr


def policy(host: Host, names: tuple[str, ...]) -> dict[str, set[str]]:
    """Package to the versions that apt can install; none for a virtual package."""
    known: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in host.run(("apt-cache", "policy", *names)).stdout.splitlines():
        if not line.startswith(" ") and line.endswith(":"):
            current = known.setdefault(line[:-1], set())
        elif found := re.match(r" (?:\*\*\*|   ) (\S+) -?\d+$", line):
            current.add(found[1])
    return known


def lists_age_s(host: Host) -> float:
    """Seconds since apt's lists were refreshed."""
    times = [host.path(p).stat().st_mtime for p in _LISTS if host.path(p).exists()]
    return time.time() - max(times, default=0.0)


def explained(done: Completed, doing: str) -> None:
    """Raise ResourceError in plain words when `done` failed."""
    if done.status == 0:
        return
    lock = _LOCKED.search(done.stderr)
    if lock:
        holder = _holder(done.stdout + done.stderr) or f"a lock: {lock[0].removeprefix('E: ')}"
        raise ResourceError(
            f"{doing}: gave up after waiting {LOCK_WAIT_S:.0f} s for {holder}",
            "let it finish (a fresh machine updates itself for some minutes), then run again",
        )
    for pattern, why, hint in _WHY:
        found = re.search(rf"^.*(?:{pattern}).*$", done.stderr, re.M)
        if found:
            gone = re.search(r"REMOVED:\n((?:  .*\n)+)", done.stdout)
            what = " ".join(gone[1].split()) if gone and "remove" in pattern else found[0]
            raise ResourceError(f"{doing}: {why}: {what.strip()}", hint)
    done.check(doing)


def _holder(text: str) -> str:
    """Return who holds a lock, as apt says it; empty when it does not."""
    found = _HOLDER.search(text)
    return f"{found[3]} (process {found[2]}), which holds {found[1]}" if found else ""
