"""Debian packages, through apt."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.apt import (
    OFFLINE,
    PACKAGE,
    apt,
    explained,
    lists_age_s,
    policy,
    update,
)
from spark_cluster.resources.base import PRESENCE, Resource, State, checks, like

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
            r"^[WE]: .*(?:Failed to fetch|Could not|Temporary failure).*", printed, re.M
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
