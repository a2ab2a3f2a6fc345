"""A netplan file of our own, and the addresses that it gives."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.node import paths
from spark_cluster.node.durable import make_folder, sync_folder, write_file
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import State, absolute, checks
from spark_cluster.resources.file import EditedFile, observe_path, sha256

FOLDERS = ("lib/netplan", "run/netplan", "etc/netplan")

WAIT_S = 15.0
"""Seconds that the network manager may take to put addresses on after `netplan apply`."""

SETTLE_S = 1.0
"""Seconds until the laptop is asked for a new connection: `netplan apply` only asks networkd, which
may take down what it takes down a little later."""

APPLY_S = 60.0
"""Seconds that `netplan apply` may take."""

COMMAND_S = 20.0
"""Seconds that `netplan generate` and `ip` may take."""

SLACK_S = 10.0
"""Seconds on top of all limits, after which the timer restores the old file. It is for a node
whose agent died. Where no new connection comes, and where the laptop is gone (GONE_AFTER of
agent/main.py), the agent restores it itself: the laptop waits for that, not for the timer."""


@dataclass(frozen=True)
class Netplan(EditedFile):
    """A file under /etc/netplan (mode 600), applied, with its addresses really there.

    The file is validated by netplan itself before it takes its place. When the addresses do not
    come, the laptop cannot open a new connection afterwards, or the laptop is gone meanwhile, the
    old file is restored and applied: by this resource, or, when the agent is killed, by a timer
    that was set before, or, when the node is switched off and on meanwhile, at the next boot before
    there is a network.

    Args:
        path: the file, under /etc/netplan.
        content: YAML, all of it; None: there is no such file.
        addresses: interface to the address with prefix that it must have, whichever file gives it.
        mtu: bytes that each of these interfaces must have, or of some of them.
        kept: what stays of other netplan files, in words; told with a change.
        confirm_within_s: seconds that the laptop has for its new connection; 0 asks for none.

    Raises:
        ResourceError: not valid, no such interface, no address, or not reached any more.

    Example:
        Netplan("/etc/netplan/70-lab.yaml", content=text, mtu=9000,
                addresses={"enp1s0f1np1": "192.168.177.11/24"})
    """

    reverts = "the old addresses come at the next boot, or with "
    reverts += "`spark-cluster exec -b -l NODE -- netplan apply`"

    valid = checks(path=absolute)

    path: str
    content: str | None = field(kw_only=True)
    addresses: Mapping[str, str] = field(kw_only=True)
    mtu: int | Mapping[str, int] = field(kw_only=True)
    kept: str = field(default="", kw_only=True)
    confirm_within_s: float = field(default=20.0, kw_only=True)

    def validate(self) -> None:
        named = self.path.startswith("/etc/netplan/") and self.path.endswith(".yaml")
        self.must(named, "not a .yaml file under /etc/netplan")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}",)

    def desired(self) -> State:
        file = {"kind": "absent"}
        if self.content is not None:
            file = {"kind": "file", "sha256": sha256(self.content.encode()), "mode": "0600"}
        return {
            **file,
            "addresses": dict(self.addresses),
            "mtu": dict(self._mtus),
            "rollback": "none",
        }

    @property
    def _mtus(self) -> Mapping[str, int]:
        return dict.fromkeys(self.addresses, self.mtu) if isinstance(self.mtu, int) else self.mtu

    def observe(self, host: Host) -> State:
        state = observe_path(host, self.path, needs_parent=True)
        rows = {row.get("ifname"): row for row in self._links(host)}
        missing = [i for i in self.addresses if i not in rows]
        if missing:
            raise ResourceError(
                f"there is no interface {', '.join(missing)}",
                f"there are: {', '.join(str(name) for name in rows)}",
            )
        state["addresses"] = {
            interface: self._address(rows[interface], wanted)
            for interface, wanted in self.addresses.items()
        }
        state["mtu"] = {interface: rows[interface].get("mtu") for interface in self._mtus}
        state["rollback"] = "pending" if self._rollback(host).armed else "none"
        return state

    def permit(self, host: Host, changes: Mapping[str, tuple[Any, Any]]) -> str:
        return self.kept

    def converge(self, host: Host, actual: State) -> None:
        rollback, pending = self._rollback(host), actual["rollback"] == "pending"
        if rollback.refused:
            raise self._unreached()
        if pending:
            host.progress(f"an earlier change of {self.path} was not confirmed")
        rollback.arm(self._longest_s())
        try:
            self._write(host)
        except Exception:
            if not pending:
                rollback.disarm()
            elif host.processes.cancelled.is_set():
                self._restore(host, rollback)
            raise
        try:
            self._apply(host)
        except Exception:  # Cancelled is no ResourceError: the laptop is gone
            self._restore(host, rollback)
            raise
        rollback.disarm()

    def text_after(self, host: Host) -> bytes | None:
        return None if self.content is None else self.content.encode()

    def _unreached(self) -> ResourceError:
        return ResourceError(
            f"with the new {self.path} this node could not be reached any more "
            f"(no new connection within {self.confirm_within_s:g} s); the old configuration was "
            "restored",
            "does it touch the interface by which the node is reached? `ip addr` there",
        )

    def _rollback(self, host: Host) -> Rollback:
        return Rollback(host, self.path, ("netplan", "apply"), ("netplan", "generate"))

    def _longest_s(self) -> float:
        """Seconds until there is a verdict when everything takes as long as it may."""
        from spark_cluster.node.processes import DRAIN_S, KILL_GRACE, TERM_GRACE  # on the node

        commands = (COMMAND_S, APPLY_S, COMMAND_S)  # the last one is `ip`, begun as WAIT_S ends
        ending_s = len(commands) * (TERM_GRACE + KILL_GRACE + DRAIN_S)
        return sum(commands) + ending_s + WAIT_S + SETTLE_S + self.confirm_within_s + SLACK_S

    def _write(self, host: Host) -> None:
        if self.content is None:
            host.remove(self.path)
            return
        data = self.content.encode()
        path = host.path(self.path)
        if host.read(self.path) != data or stat.S_IMODE(path.stat().st_mode) != 0o600:
            host.write(self.path, data, mode=0o600, validate=lambda new: self._check(host, new))

    def _apply(self, host: Host) -> None:
        host.run(("netplan", "apply"), timeout=APPLY_S).check("netplan apply")
        self._wait(host)
        host.processes.cancelled.wait(SETTLE_S)
        if self.confirm_within_s and not host.verify_reconnect(self.confirm_within_s):
            raise self._unreached()

    def _links(self, host: Host) -> list[dict[str, Any]]:
        done = host.run(("ip", "-j", "addr"), timeout=COMMAND_S).check("ip -j addr")
        return [row for row in json.loads(done.stdout or "[]") if row]

    def _address(self, row: dict[str, Any], wanted: str) -> str | None:
        """The wanted address when it is there, else the first IPv4 one."""
        infos = [i for i in row.get("addr_info", []) if i.get("family") == "inet"]
        present = [f"{i['local']}/{i['prefixlen']}" for i in infos]
        return wanted if wanted in present else next(iter(present), None)

    def _check(self, host: Host, new: Path) -> None:
        """Ask netplan itself, with all files that the new one will be read together with."""
        with tempfile.TemporaryDirectory(prefix="netplan-") as root:
            scratch = Path(root)
            for folder in FOLDERS:
                (scratch / folder).mkdir(parents=True)
                for other in host.path(folder).glob("*.yaml"):
                    shutil.copy(other, scratch / folder / other.name)
            shutil.copy(new, scratch / self.path.lstrip("/"))
            argv = ("netplan", "generate", "--root-dir", str(scratch))
            host.run(argv, timeout=COMMAND_S).check(
                f"netplan does not accept the new {self.path}, the old one stays"
            )

    def _wait(self, host: Host) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            state = self.observe(host)
            lacking = [
                f"{i} has {state['addresses'][i]} with MTU {state['mtu'].get(i)}"
                for i, address in self.addresses.items()
                if state["addresses"][i] != address or state["mtu"].get(i) != self._mtus.get(i)
            ]
            if not lacking:
                return
            if time.monotonic() > deadline:
                raise ResourceError(
                    f"{WAIT_S:g} s after netplan apply {', '.join(lacking)}; "
                    "the old configuration was restored",
                    "is the cable in? `ip addr` and `journalctl -u systemd-networkd` on the node",
                )
            time.sleep(0.1)

    def _restore(self, host: Host, rollback: Rollback) -> None:
        """Restore the old file and apply it, unless the timer has done so already.

        Not cancelled when the laptop is gone.
        """
        try:
            before = rollback.before()
        except FileNotFoundError:
            host.note(f"{self.path}: the timer has restored the old configuration already")
            return
        if before is None:
            host.remove(self.path)
        else:
            data, status = before
            mode = stat.S_IMODE(status.st_mode)
            host.write(self.path, data, mode=mode, uid=status.st_uid, gid=status.st_gid)
        with contextlib.suppress(ResourceError):
            host.run(("netplan", "apply"), timeout=APPLY_S, must_finish=True)
        rollback.refuse()
        rollback.disarm()


# A file that restores itself, unless the node is confirmed in time to be still reachable.
#
# Two things restore it: a timer of systemd's that runs out, and, when the power was switched off
# and on before it did, a unit of the next boot that is done before the network is configured.

WANTS = f"{paths.SYSTEMD_UNITS}/sysinit.target.wants"

_SCRIPT = """#!/bin/sh
# Restores {path}: the laptop has not confirmed that this node is still reachable.
# It can be cut off by a power cut anywhere, and be run again.
set -e
cd {folder}
if [ -e before ]; then
    cp -p before {staged}
    sync {staged}
    mv {staged} {path}
elif [ -e absent ]; then
    rm -f {path}
else
    exit 1
fi
sync {parent}
echo {run} > {refused}
cd /
rm -rf {gone}
mv {folder} {gone}
rm -rf {gone} {wanted} {unit}
if [ "$1" = boot ]; then
    exec {at_boot}
fi
exec {then}
"""

_UNIT = """[Unit]
Description=Restore {path}, whose change was not confirmed
ConditionPathExists={folder}
DefaultDependencies=no
RequiresMountsFor={folder} {path}
After=local-fs.target systemd-remount-fs.service
Before=network-pre.target systemd-networkd.service NetworkManager.service shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
ExecStart=/bin/sh {folder}/rollback boot
TimeoutStartSec=60
"""


@dataclass(frozen=True)
class Rollback:
    """A rollback that restores `path` by itself, even if this process dies or the power fails.

    While it is armed, what was there before the first unconfirmed change is kept: a run that dies
    does not make its own change the one to go back to.

    Args:
        path: the file.
        then: a command that brings the old file into force.
        at_boot: a command that does it before the network is configured.
    """

    host: Host
    path: str
    then: tuple[str, ...]
    at_boot: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.host.path(f"{paths.ROLLBACK}/{self._label}")

    @property
    def armed(self) -> bool:
        """True if there is a change that was not confirmed."""
        return self.folder.is_dir()

    @property
    def refused(self) -> bool:
        """True if this very run has made the change already, and it had to be reverted."""
        mark = self._refused
        return mark.exists() and mark.read_text().strip() == self.host.run_id

    def refuse(self) -> None:
        """Note that the change had to be reverted: a run that was cut off by it goes on here, and
        must not make it again."""
        self._refused.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(self._refused, f"{self.host.run_id}\n".encode())

    def before(self) -> tuple[bytes, os.stat_result] | None:
        """Return what was there before the first unconfirmed change, with its mode and owner; None
        when there was nothing.

        Raises:
            FileNotFoundError: it is not armed any more: the timer has restored the old file.
        """
        if (self.folder / "absent").exists():
            return None
        kept = self.folder / "before"
        return kept.read_bytes(), kept.stat()

    def arm(self, after_s: float) -> None:
        """Keep what is there now, and restore it after so many seconds, or at the next boot.

        Not cancelled when the laptop is gone: the timer of an earlier change is never just stopped.
        """
        if not self.armed:
            self._keep()
        write_file(self.folder / "rollback", self._script().encode())
        unit = _UNIT.format(path=self.host.path(self.path), folder=self.folder)
        make_folder(self._wanted.parent, 0o755)
        write_file(self._unit_file, unit.encode(), 0o644)
        if not self._wanted.is_symlink():
            self._wanted.symlink_to(f"../{self._unit_file.name}")
            sync_folder(self._wanted.parent)
        self._stop()
        self.host.run(
            (
                *("systemd-run", "--quiet", "--collect", f"--unit={self._unit}"),
                *(f"--on-active={after_s:g}", "--timer-property=AccuracySec=1s"),
                *("--", "/bin/sh", str(self.folder / "rollback"), "timer"),
            ),
            must_finish=True,
        ).check(f"a timer that restores {self.path} in case this node is cut off")

    def disarm(self) -> None:
        """Keep the file as it is now. Not cancelled when the laptop is gone."""
        self._stop()
        for path in (self._wanted, self._unit_file):
            if path.is_symlink() or path.exists():
                path.unlink()
                sync_folder(path.parent)
        if self.armed:  # by a rename: half of it would put half of it back
            shutil.rmtree(self._gone, ignore_errors=True)
            self.folder.rename(self._gone)
            sync_folder(self.folder.parent)
        shutil.rmtree(self._gone, ignore_errors=True)

    def _keep(self) -> None:
        """Copy what is there, with mode and owner, and sync it."""
        target, staged = self.host.path(self.path), self.folder.with_name(f".{self._label}")
        shutil.rmtree(staged, ignore_errors=True)
        make_folder(staged)
        if target.exists():
            status = target.stat()
            kept = staged / "before"
            write_file(kept, target.read_bytes(), stat.S_IMODE(status.st_mode))
            os.chown(kept, status.st_uid, status.st_gid)
            kept.chmod(stat.S_IMODE(status.st_mode))
        else:
            write_file(staged / "absent", b"")
        sync_folder(staged)
        staged.rename(self.folder)
        sync_folder(self.folder.parent)

    def _script(self) -> str:
        target = self.host.path(self.path)
        names = {
            "path": target,
            "parent": target.parent,
            "staged": target.with_name(f".{target.name}.rollback"),
            "folder": self.folder,
            "gone": self._gone,
            "refused": self._refused,
            "run": self.host.run_id,
            "unit": self._unit_file,
            "wanted": self._wanted,
        }
        quoted = {name: shlex.quote(str(value)) for name, value in names.items()}
        return _SCRIPT.format(
            **quoted, then=shlex.join(self.then), at_boot=shlex.join(self.at_boot)
        )

    @property
    def _gone(self) -> Path:
        return self.folder.with_name(f".{self._label}.gone")

    @property
    def _unit_file(self) -> Path:
        return self.host.path(f"{paths.SYSTEMD_UNITS}/spark-cluster-restore-{self._label}.service")

    @property
    def _wanted(self) -> Path:
        return self.host.path(f"{WANTS}/{self._unit_file.name}")

    @property
    def _refused(self) -> Path:
        return self.folder.with_name(f"{self._label}.refused")

    @property
    def _label(self) -> str:
        return re.sub(r"[^A-Za-z0-9]+", "-", self.path).strip("-")

    @property
    def _unit(self) -> str:
        return f"spark-cluster-rollback-{self._label}"

    def _stop(self) -> None:
        with contextlib.suppress(ResourceError):
            self.host.run(("systemctl", "stop", f"{self._unit}.timer"), must_finish=True)
