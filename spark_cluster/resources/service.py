"""A systemd unit: running or not, started at boot or not, restarted when its files change."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.node import paths
from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError, Skip
from spark_cluster.resources import unit
from spark_cluster.resources.base import Resource, State, checks, given, like
from spark_cluster.resources.unit import end_of

_UNIT_TYPES = ("service", "socket", "timer", "target", "mount", "path")
_FOLDERS = (paths.SYSTEMD_UNITS, "/run/systemd/system", "/usr/lib/systemd/system")
_PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Type,LoadError"
_AT_BOOT = ("enabled", "alias", "generated", "indirect")
_STAYS_S = 1.0
"""Seconds that a service which does not itself tell when it is ready must stay up."""


@dataclass(frozen=True)
class Service(Resource):
    """A systemd unit.

    Args:
        unit: `docker`, or with its kind: `docker.socket`, `fstrim.timer`.
        running: True, False, or None to leave it; a unit that ends by itself (oneshot without
            RemainAfterExit) cannot be kept running.
        enabled: started at boot: True, False, or None to leave it.
        restart_when: resources (or ids) of the same document whose change restarts it.
        reload: reload instead of restart, for what can.
        in_use: a command that prints who uses it, one name a line (nothing when none does): a
            restart that is due then waits for a later run, and the run says so.
        allow_restart: restart it all the same.
        timeout_s: seconds for a start, stop or restart.

    Raises:
        Missing: there is no such unit.
        ResourceError: masked, cannot be enabled, or did not start (with the end of its log).

    Example:
        Service("docker", enabled=True, restart_when=(daemon_json,))
    """

    reverts = "what it started or stopped stays; restart it when its files were reverted"

    valid = checks(unit=like(r"[A-Za-z0-9:_.@\\-]+", "the name of a unit"))

    unit: str
    running: bool | None = field(default=True, kw_only=True)
    enabled: bool | None = field(default=None, kw_only=True)
    restart_when: tuple[Resource | str, ...] = field(default=(), kw_only=True)
    reload: bool = field(default=False, kw_only=True)
    in_use: tuple[str, ...] = field(default=(), kw_only=True)
    allow_restart: bool = field(default=False, kw_only=True)
    timeout_s: float = field(default=180.0, kw_only=True)

    def validate(self) -> None:
        asks = self.running is not None or self.enabled is not None or self.restart_when
        self.must(asks, "it asks for nothing")
        fits = self.running is not False or not self.restart_when
        self.must(fits, "restart_when with running=False")

    def provides(self) -> tuple[str, ...]:
        return (f"running:{self._full}",) if self.running else ()

    def desired(self) -> State:
        unit_file = "as loaded" if self.running or self.enabled else None
        return given(running=self.running, enabled=self.enabled, unit_file=unit_file)

    def observe(self, host: Host) -> State:
        known = self._show(host)
        load, file = known["LoadState"], known["UnitFileState"]
        if load == "not-found" and (self.running or self.enabled or self.restart_when):
            raise self._missing(host)
        # `error`: its file was away for a while; systemd looks again only when it is told to.
        stale = known["NeedDaemonReload"] == "yes" or load == "error"
        if load not in ("loaded", "masked", "not-found") and not stale:
            raise ResourceError(
                f"the file of {self._full} is not valid: {known.get('LoadError') or load}",
                f"`systemd-analyze verify {self._full}` on the node",
            )
        if load == "masked" and (self.running or self.enabled):
            raise ResourceError(
                f"{self._full} is masked: it cannot be started",
                f"`systemctl unmask {self._full}` on the node, if that was not meant",
            )
        if file in ("static", "transient") and self.enabled:
            raise ResourceError(
                f"{self._full} cannot be enabled: it has no [Install] section ({file})",
                "declare it with enabled=None; other units start it",
            )
        return {
            "running": known["ActiveState"] in ("active", "reloading"),
            "enabled": file in _AT_BOOT,
            "unit_file": "changed since" if stale else "as loaded",
            "state": f"{known['ActiveState']} ({known['SubState']})",
        }

    def permit(self, host: Host, changes: Mapping[str, tuple[Any, Any]]) -> str:
        if "restart" not in changes or "running" in changes or not self.in_use:
            return ""  # what is down has no users whom a start could end
        users = ", ".join(host.run(self.in_use, timeout=60).stdout.split())
        if not users:
            return ""
        if not self.allow_restart:
            text = f"would restart {self.unit}, which ends {users}: its new settings wait"
            host.note(
                f"{text}. `spark-cluster provision --allow-restart` restarts it now; otherwise it "
                "is done by the next run after `spark-cluster down`"
            )
            raise Skip(text)
        return f"{'would restart' if host.check else 'restarts'} {self.unit}, which ends {users}"

    def converge(self, host: Host, actual: State) -> None:
        if actual["unit_file"] != "as loaded":
            unit.systemctl(host, "daemon-reload")
        if self.enabled is not None and actual["enabled"] != self.enabled:
            unit.systemctl(host, "enable" if self.enabled else "disable", self._full)
        action = self._action(actual)
        if action is None:
            return
        if actual["state"].startswith("failed"):
            unit.systemctl(host, "reset-failed", self._full)
        host.progress(f"systemctl {action} {self._full}")
        done = host.run(("systemctl", action, self._full), timeout=self.timeout_s)
        if done.status != 0:
            raise self._did_not(host, action, done.stderr.strip())
        for line in done.stderr.splitlines():  # e.g. that its socket will start it again
            host.progress(line)
        if action != "stop" and self.running:
            self._stays(host, action)

    @property
    def _full(self) -> str:
        has_kind = self.unit.endswith(_UNIT_TYPES) and "." in self.unit
        return self.unit if has_kind else f"{self.unit}.service"

    def _action(self, actual: State) -> str | None:
        if actual.get("restart") == "pending":
            if self.running is None:
                return "try-reload-or-restart" if self.reload else "try-restart"
            if actual["running"]:
                return "reload-or-restart" if self.reload else "restart"
        if self.running is None or actual["running"] == self.running:
            return None
        return "start" if self.running else "stop"

    def _show(self, host: Host) -> dict[str, str]:
        known = unit.show(host, self._full, _PROPERTIES)
        return {"UnitFileState": "", "NeedDaemonReload": "no", "SubState": "", **known}

    def _missing(self, host: Host) -> Missing:
        """Return the error, with a claim on its file when an earlier resource will create that."""
        template = re.sub(r"@[^.]*\.", "@.", self._full)
        files = [f"path:{folder}/{template}" for folder in _FOLDERS]
        claim = next((f for f in files if host.will_provide(f)), f"unit:{self._full}")
        return Missing(
            claim, f"there is no unit {self._full}", "declare its package or file before it"
        )

    def _stays(self, host: Host, action: str) -> None:
        """A simple service is `active` as soon as it was forked: look again a little later."""
        until = time.monotonic() + _STAYS_S
        known = self._show(host)
        while known["ActiveState"] == "active" and known.get("Type") in ("simple", "exec", "idle"):
            if time.monotonic() > until:
                return
            time.sleep(0.2)
            known = self._show(host)
        if known["ActiveState"] not in ("active", "reloading"):
            raise self._did_not(host, action, f"{known['ActiveState']} ({known['SubState']})")

    def _did_not(self, host: Host, action: str, printed: str) -> ResourceError:
        tail = end_of(unit.end_of_log(host, self._full))
        return ResourceError(
            f"systemctl {action} {self._full} failed: {printed.splitlines()[0] if printed else ''}"
            f"; its log ends:{tail}",
            f"`systemctl status {self._full}` on the node",
        )
