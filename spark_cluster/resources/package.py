"""Debian packages, through apt."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_cluster.node import units
from spark_cluster.node.host import Host
from spark_cluster.node.processes import Completed
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import PRESENCE, Resource, State, checks, given, like

# apt on a node: run with patience for its locks, and its failures in plain words.

APT_S = 3600.0
LOCK_WAIT_S = 120.0
OFFLINE = (
    "check the node's network, DNS and proxy (apt's own, or that of /etc/environment) and, by "
    "`timedatectl`, its clock (`apt-get update` on the node shows more)"
)

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
        env = {**host.proxies(), **_ENV}
        return units.run(host, host.current, argv, env=env, timeout=APT_S, on_output=on_output)

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


_SHOW = "${Package}\\t${Architecture}\\t${db:Status-Abbrev}\\t${Version}\\n"
_STATES = {"i": "present", "U": "unpacked", "F": "half-configured", "H": "half-installed"}


@dataclass(frozen=True)
class Package(Resource):
    """Debian packages, one or several, installed or removed in one go.

    Nothing else is removed to make it so, configuration files that were changed stay, recommended
    packages are left out.

    Args:
        package: its name in apt.
        also: more packages for the same call of apt.
        version: exactly this one of `package`; with * at its end any that begins so, the newest
            when it has to be installed. None takes any that is there.
        state: `present` or `absent` (`absent` keeps configuration files).
        change_held: change it even when it is held (apt-mark hold); that releases it, so a `Hold`
            comes after it.
        lists_max_age_s: before something is installed, `apt-get update` when lists are older
            than so many seconds (it always runs for what apt does not know).
        makes: what will exist afterwards, for check mode: `command:docker`, `unit:docker.service`,
            `group:docker`, `path:/usr/bin/docker`.

    Raises:
        ResourceError: no such package, held, lock taken, mirror not reached, disk full.

    Example:
        Package("docker.io", also=("docker-cli",), makes=("command:docker", "group:docker"))
    """

    reverts = "what was installed or removed stays so"

    valid = checks(
        package=PACKAGE,
        also=PACKAGE,
        state=PRESENCE,
        version=like(r"\d[A-Za-z0-9.+~:-]*\*?", "a version"),
    )

    package: str
    also: tuple[str, ...] = field(default=(), kw_only=True)
    version: str | None = field(default=None, kw_only=True)
    state: str = field(default="present", kw_only=True)
    change_held: bool = field(default=False, kw_only=True)
    lists_max_age_s: float = field(default=24 * 3600.0, kw_only=True)
    makes: tuple[str, ...] = field(default=(), kw_only=True)

    def validate(self) -> None:
        fits = self.version is None or self.state == "present"
        self.must(fits, "a version needs state present")

    def provides(self) -> tuple[str, ...]:
        if self.state == "absent":
            return ()
        return (*(f"package:{name}" for name in self._names), *self.makes)

    def desired(self) -> State:
        return {**dict.fromkeys(self._names, self.state), **given(version=self.version)}

    def observe(self, host: Host) -> State:
        if host.which("dpkg-query") is None:
            raise ResourceError(
                "this node has no dpkg-query", "Package is for Debian and Ubuntu; DGX OS is one"
            )
        shown = host.run(("dpkg-query", "-W", "-f", _SHOW, *self._names)).stdout
        state: State = dict.fromkeys(self._names, "absent")
        held = []
        for line in shown.splitlines():
            package, architecture, status, version = line.split("\t")
            for name in {package, f"{package}:{architecture}"} & set(self._names):
                state[name] = _STATES.get(status[1], "absent")
                if name == self.package:
                    state["version"] = self.version if self._fits(version) else version
                if status[0] == "h":
                    held.append(name)
        return {**state, "held": held}

    def converge(self, host: Host, actual: State) -> None:
        if actual["held"] and not self.change_held:
            raise ResourceError(
                f"{', '.join(actual['held'])} is held (apt-mark hold) at {actual.get('version')}",
                f"`apt-mark unhold {' '.join(actual['held'])}` on the node, if it should change",
            )
        if self.state == "absent":
            self._remove(host)
            return
        self._refresh(host)
        wanted = [f"{self.package}={self.version}" if self.version else self.package, *self.also]
        options = ("--no-install-recommends", "--no-remove", *self._allowed)
        host.progress(f"installing {' '.join(wanted)}")
        arguments = ("install", *options, *wanted)
        done = apt(host, *arguments)
        if done.status != 0 and re.search(r"404 +Not Found", done.stderr):
            update(host)  # the lists were older than the mirror
            done = apt(host, *arguments)
        explained(done, f"installing {' '.join(wanted)}")

    def _fits(self, version: str) -> bool:
        """Return whether a version is the wanted one, or one of those."""
        wanted = self.version or ""
        return version == wanted or (wanted[-1:] == "*" and version.startswith(wanted[:-1]))

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.package, *self.also)

    @property
    def _allowed(self) -> tuple[str, ...]:
        downgrade = ("--allow-downgrades",) if self.version else ()
        return (*downgrade, *(("--allow-change-held-packages",) if self.change_held else ()))

    def _remove(self, host: Host) -> None:
        plan = apt(host, "remove", "--simulate", *self._allowed, *self._names)
        explained(plan, f"removing {' '.join(self._names)}")
        known = {name.partition(":")[0] for name in self._names}
        others = sorted(set(re.findall(r"^Remv (\S+)", plan.stdout, re.M)) - known)
        if others:
            raise ResourceError(
                f"removing {' '.join(self._names)} would remove {', '.join(others)} too",
                "name them in also=(...) if that is meant",
            )
        done = apt(host, "remove", *self._allowed, *self._names)
        explained(done, f"removing {' '.join(self._names)}")

    def _refresh(self, host: Host) -> None:
        """Make apt know what is wanted; say what is near when there is no such thing."""
        unknown = self._unknown(host)
        if not unknown and lists_age_s(host) <= self.lists_max_age_s:
            return
        printed = update(host)
        unknown = self._unknown(host)
        if not unknown:
            return
        failed = re.search(
            r"^[WE]: .*(?:Failed to fetch|Could not|Temporary failure|is not valid yet).*",
            printed,
            re.M,
        )
        if failed:
            raise ResourceError(
                f"apt does not know {', '.join(unknown)}, and its lists could not be refreshed: "
                f"{failed[0][3:]}",
                OFFLINE,
            )
        raise ResourceError(f"apt knows no package {', '.join(unknown)}", self._near(host, unknown))

    def _unknown(self, host: Host) -> list[str]:
        """Return what apt could not install: names without a candidate, or `name=version`."""
        known = policy(host, self._names)
        unknown = [name for name in self._names if not known.get(name)]
        fits = self.package in unknown or any(map(self._fits, known[self.package]))
        if self.version and not fits:
            unknown.append(f"{self.package}={self.version}")
        return unknown

    def _near(self, host: Host, unknown: list[str]) -> str:
        if unknown == [f"{self.package}={self.version}"]:
            versions = sorted(policy(host, (self.package,))[self.package])
            return f"versions that it knows: {', '.join(versions)}"
        name = unknown[0]
        found = host.run(("apt-cache", "pkgnames", name[:3])).stdout.split()
        near = difflib.get_close_matches(name, found, n=3)
        ask = f"did you mean {' or '.join(near)}? " if near else ""
        return f"{ask}Look for it with `apt-cache search --names-only {name[:4]}` on the node"
