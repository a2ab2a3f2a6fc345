"""Debian packages, through apt."""

from __future__ import annotations

import difflib
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_cluster.resources.base import InvalidResource, Resource, ResourceError, State

if TYPE_CHECKING:
    from spark_cluster.agent.host import Completed, Host

APT_S = 3600.0
LOCK_WAIT_S = 120.0
_LISTS = ("/var/lib/apt/periodic/update-success-stamp", "/var/lib/apt/lists/partial")
_ENV = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l"}
_OPTIONS = (
    *("-y", "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S:.0f}"),
    *("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"),
)
_SHOW = "${Package}\\t${Architecture}\\t${db:Status-Abbrev}\\t${Version}\\n"
_STATES = {"i": "present", "U": "unpacked", "F": "half-configured", "H": "half-installed"}

_LOCKED = re.compile(r"^E: (?:Could not get lock|Unable to acquire|Unable to lock) .*$", re.M)
_HOLDER = re.compile(r"Could not get lock (\S+?)\. It is held by process (\d+) \(([^)]*)\)")
_OFFLINE = "check the node's network, DNS and proxy (`apt-get update` on the node tells more)"
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
        _OFFLINE,
    ),
    (
        r"Unmet dependencies|--fix-broken",
        "packages that are there do not fit together",
        "`apt-get --fix-broken install` on the node, and look at what it wants to do",
    ),
    (
        r"need to be removed but remove is disabled",
        "it would remove packages that are there",
        "remove them first with Package(..., state='absent') if that is meant",
    ),
)


@dataclass(frozen=True)
class Package(Resource):
    """One or several Debian packages, installed or removed in one go.

    Nothing else is removed to make it so, configuration files that were changed stay, recommended
    packages are left out.

    Args:
        package: its name in apt.
        also: more packages for the same call of apt.
        version: exactly this one of `package`; None takes any that is there.
        state: `present` or `absent` (`absent` keeps configuration files).
        lists_max_age_s: before something is installed, `apt-get update` when lists are older
            than so many seconds (it always runs for what apt does not know).
        makes: what will exist afterwards, for check mode: `command:docker`, `unit:docker.service`,
            `group:docker`, `path:/usr/bin/docker`.

    Raises:
        ResourceError: no such package, held, lock taken, mirror not reached, disk full.

    Example:
        Package("docker.io", also=("docker-cli",), makes=("command:docker", "group:docker"))
    """

    noun = "package"

    package: str
    also: tuple[str, ...] = field(default=(), kw_only=True)
    version: str | None = field(default=None, kw_only=True)
    state: str = field(default="present", kw_only=True)
    lists_max_age_s: float = field(default=24 * 3600.0, kw_only=True)
    makes: tuple[str, ...] = field(default=(), kw_only=True)

    def validate(self) -> None:
        if isinstance(self.also, str):
            raise InvalidResource(f"Package {self.package}: also is a list of names")
        for name in self._names:
            if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?", name):
                raise InvalidResource(f"Package: {name!r} is not the name of a Debian package")
        if self.state not in ("present", "absent"):
            raise InvalidResource(f"Package {self.package}: state {self.state!r} is unknown")
        if self.version is not None and not re.fullmatch(r"[0-9][A-Za-z0-9.+~:-]*", self.version):
            raise InvalidResource(f"Package {self.package}: {self.version!r} is not a version")
        if self.version is not None and self.state == "absent":
            raise InvalidResource(f"Package {self.package}: a version goes with state present only")

    def provides(self) -> tuple[str, ...]:
        if self.state == "absent":
            return ()
        return (*(f"package:{name}" for name in self._names), *self.makes)

    def desired(self) -> State:
        wanted: State = dict.fromkeys(self._names, self.state)
        if self.version is not None:
            wanted["version"] = self.version
        return wanted

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
                    state["version"] = version
                if status[0] == "h":
                    held.append(name)
        return {**state, "held": held}

    def converge(self, host: Host, actual: State) -> None:
        if actual["held"]:
            raise ResourceError(
                f"{', '.join(actual['held'])} is held (apt-mark hold) at {actual.get('version')}",
                f"`apt-mark unhold {' '.join(actual['held'])}` on the node, if it shall change",
            )
        if self.state == "absent":
            self._remove(host)
            return
        self._refresh(host)
        wanted = [f"{self.package}={self.version}" if self.version else self.package, *self.also]
        downgrade = ("--allow-downgrades",) if self.version else ()
        host.progress(f"installing {' '.join(wanted)}")
        arguments = ("install", "--no-install-recommends", "--no-remove", *downgrade, *wanted)
        done = _apt(host, *arguments)
        if done.status != 0 and re.search(r"404 +Not Found", done.stderr):
            _update(host)  # the lists were older than the mirror
            done = _apt(host, *arguments)
        _explained(done, f"installing {' '.join(wanted)}")

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.package, *self.also)

    def _remove(self, host: Host) -> None:
        plan = _apt(host, "remove", "--simulate", *self._names)
        _explained(plan, f"removing {' '.join(self._names)}")
        known = {name.partition(":")[0] for name in self._names}
        others = sorted(set(re.findall(r"^Remv (\S+)", plan.stdout, re.M)) - known)
        if others:
            raise ResourceError(
                f"removing {' '.join(self._names)} would remove {', '.join(others)} too",
                "name them in also=(...) if that is meant",
            )
        _explained(_apt(host, "remove", *self._names), f"removing {' '.join(self._names)}")

    def _refresh(self, host: Host) -> None:
        """Make apt know what is wanted; say what is near when there is no such thing."""
        unknown = self._unknown(host)
        if not unknown and _lists_age_s(host) <= self.lists_max_age_s:
            return
        said = _update(host)
        unknown = self._unknown(host)
        if not unknown:
            return
        failed = re.search(
            r"^[WE]: .*(?:Failed to fetch|Could not|Temporary failure).*", said, re.M
        )
        if failed:
            raise ResourceError(
                f"apt does not know {', '.join(unknown)}, and its lists could not be refreshed: "
                f"{failed[0][3:]}",
                _OFFLINE,
            )
        raise ResourceError(f"apt knows no package {', '.join(unknown)}", self._near(host, unknown))

    def _unknown(self, host: Host) -> list[str]:
        """What apt could not install: names without a candidate, or `name=version`."""
        known = _policy(host, self._names)
        unknown = [name for name in self._names if not known.get(name)]
        if self.version and self.package not in unknown and self.version not in known[self.package]:
            unknown.append(f"{self.package}={self.version}")
        return unknown

    def _near(self, host: Host, unknown: list[str]) -> str:
        if unknown == [f"{self.package}={self.version}"]:
            versions = sorted(_policy(host, (self.package,))[self.package])
            return f"versions that it knows: {', '.join(versions)}"
        name = unknown[0]
        found = host.run(("apt-cache", "pkgnames", name[:3])).stdout.split()
        near = difflib.get_close_matches(name, found, n=3)
        ask = f"did you mean {' or '.join(near)}? " if near else ""
        return f"{ask}Look for it with `apt-cache search --names-only {name[:4]}` on the node"


def _policy(host: Host, names: tuple[str, ...]) -> dict[str, set[str]]:
    """Package to the versions that apt can install; none for a virtual package."""
    known: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in host.run(("apt-cache", "policy", *names)).stdout.splitlines():
        if not line.startswith(" ") and line.endswith(":"):
            current = known.setdefault(line[:-1], set())
        elif found := re.match(r" (?:\*\*\*|   ) (\S+) -?\d+$", line):
            current.add(found[1])
    return known


def _lists_age_s(host: Host) -> float:
    """Seconds since apt's lists were refreshed."""
    times = [host.path(p).stat().st_mtime for p in _LISTS if host.path(p).exists()]
    return time.time() - max(times, default=0.0)


def _update(host: Host) -> str:
    """Refresh apt's lists; one source that fails is told of, not fatal: others may suffice."""
    host.progress("apt-get update")
    done = _apt(host, "update")
    if _LOCKED.search(done.stderr):
        _explained(done, "apt-get update")
    for line in done.stderr.splitlines():
        host.progress(line)
    return done.stderr


def _apt(host: Host, *arguments: str) -> Completed:
    """Run apt-get, after a repair of an interrupted dpkg when it asks for one.

    apt itself waits for dpkg's lock, but not for that of its lists: that is waited for here.
    """
    told: set[str] = set()

    def heard(line: str) -> None:
        holder = _holder(line)
        if holder and holder not in told:
            told.add(holder)
            host.progress(f"waiting for {holder}")

    def run() -> Completed:
        argv = ("apt-get", *_OPTIONS, *arguments)
        return host.run(argv, env=_ENV, timeout=APT_S, must_finish=True, heard=heard)

    until = time.monotonic() + LOCK_WAIT_S
    done = run()
    while _LOCKED.search(done.stderr) and time.monotonic() < until:
        if host.processes.cancelled.is_set():
            break
        time.sleep(2)
        done = run()
    if "dpkg --configure -a" in done.stderr:
        host.progress("dpkg was interrupted earlier: repairing with dpkg --configure -a")
        argv = ("dpkg", "--force-confdef", "--force-confold", "--configure", "-a")
        repaired = host.run(argv, env=_ENV, timeout=APT_S, must_finish=True)
        repaired.check("dpkg was interrupted earlier, and repairing it failed")
        host.journal.record(host.current, "repaired", what="an interrupted dpkg")
        done = run()
    return done


def _holder(text: str) -> str:
    """Who holds a lock, as apt says it; empty when it does not."""
    found = _HOLDER.search(text)
    return f"{found[3]} (process {found[2]}), which holds {found[1]}" if found else ""


def _explained(done: Completed, doing: str) -> None:
    """Raise ResourceError in plain words when `done` failed."""
    if done.status == 0:
        return
    lock = _LOCKED.search(done.stderr)
    if lock:
        holder = _holder(done.stdout + done.stderr) or f"a lock: {lock[0][3:]}"
        raise ResourceError(
            f"{doing}: waited {LOCK_WAIT_S:.0f} s in vain for {holder}",
            "let it finish (a fresh machine updates itself for some minutes), then run again",
        )
    for pattern, why, hint in _WHY:
        found = re.search(rf"^.*(?:{pattern}).*$", done.stderr, re.M)
        if found:
            gone = re.search(r"REMOVED:\n((?:  .*\n)+)", done.stdout)
            what = " ".join(gone[1].split()) if gone and "remove" in pattern else found[0]
            raise ResourceError(f"{doing}: {why}: {what.strip()}", hint)
    done.check(doing)
