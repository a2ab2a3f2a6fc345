"""A file that puts itself back, unless somebody says in time that the node is still reached."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.resources.base import ResourceError

if TYPE_CHECKING:
    from spark_cluster.agent.host import Host

FOLDER = "/run/spark-cluster/rollback"
_SCRIPT = """#!/bin/sh
# Puts {path} back as it was: nobody has said that this node is still reached.
set -e
if [ -e {before} ]; then
    cp -p {before} {beside}
    mv {beside} {path}
else
    rm -f {path}
fi
rm -rf {folder}
echo {run} > {refused}
exec {then}
"""


@dataclass(frozen=True)
class Rollback:
    """What will put `path` back by itself, in a timer of systemd's that outlives this process.

    While it is armed, what was there before the first unconfirmed change is kept: a run that dies
    does not make its own change the one to go back to.

    Args:
        path: the file.
        then: a command that brings the old file into force.
    """

    host: Host
    path: str
    then: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.host.path(f"{FOLDER}/{self._label}")

    @property
    def armed(self) -> bool:
        """A change is there that nobody has confirmed."""
        return self.folder.is_dir()

    @property
    def refused(self) -> bool:
        """This very run has made the change already, and it had to be put back."""
        mark = self._refused
        return mark.exists() and mark.read_text().strip() == self.host.run_id

    def refuse(self) -> None:
        """Note that the change had to be put back: a run that was cut off by it goes on here, and
        must not make it again."""
        self._refused.parent.mkdir(parents=True, exist_ok=True)
        self._refused.write_text(self.host.run_id + "\n")

    def before(self) -> bytes | None:
        """What was there before the first unconfirmed change."""
        kept = self.folder / "before"
        return kept.read_bytes() if kept.exists() else None

    def arm(self, after_s: float) -> None:
        """Keep what is there now, and put it back after so many seconds."""
        target = self.host.path(self.path)
        if not self.armed:
            beside = self.folder.with_name(f".{self._label}")
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True, mode=0o700)
            if target.exists():
                shutil.copy2(target, beside / "before")
            beside.rename(self.folder)
        script = self.folder / "rollback"
        beside_target = target.with_name(f".{target.name}.rollback")
        names = {
            "path": target,
            "before": self.folder / "before",
            "beside": beside_target,
            "folder": self.folder,
            "refused": self._refused,
            "run": self.host.run_id,
        }
        quoted = {name: shlex.quote(str(value)) for name, value in names.items()}
        script.write_text(_SCRIPT.format(**quoted, then=shlex.join(self.then)))
        self._stop()
        self.host.run(
            (
                *("systemd-run", "--quiet", "--collect", f"--unit={self._unit}"),
                *(f"--on-active={after_s:g}", "--timer-property=AccuracySec=1s"),
                *("--", "/bin/sh", str(script)),
            )
        ).check(f"a timer that puts {self.path} back in case this node is cut off")

    def disarm(self) -> None:
        """It stays as it is now."""
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

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
            self.host.run(("systemctl", "stop", f"{self._unit}.timer"))
