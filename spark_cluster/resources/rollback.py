"""A file that restores itself, unless the node is confirmed in time to be still reachable.

Two things restore it: a timer of systemd's that runs out, and, when the power was switched off and
on before it did, a unit of the next boot that is done before the network is configured.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.node import paths
from spark_cluster.node.durable import make_folder, sync_folder, write_file
from spark_cluster.node.values import ResourceError

if TYPE_CHECKING:
    from spark_cluster.node.host import Host

FOLDER = paths.ROLLBACK
UNITS = paths.SYSTEMD_UNITS
WANTS = f"{UNITS}/sysinit.target.wants"

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
        return self.host.path(f"{FOLDER}/{self._label}")

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
        return self.host.path(f"{UNITS}/spark-cluster-restore-{self._label}.service")

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
