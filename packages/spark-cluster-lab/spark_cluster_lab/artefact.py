"""Things that are made once and kept: each is named by a hash of its recipe.

A thing is built next to its final place and renamed when whole, so what carries its final name is
complete, and a changed recipe is another name. The plain name is a link to the newest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster.node.durable import mount_points
from spark_cluster_lab.machine import Progress
from spark_cluster_lab.shell import run

KEY_LENGTH = 12


@dataclass(frozen=True)
class Artefact:
    """A prepared directory.

    Args:
        name: what it is called in progress lines.
        recipe: everything its content depends on; other text is another artefact.
        build: fills the (existing, empty) directory it is given.
        usual_s, usual_mb: seconds and megabytes that it usually takes (measured on two quiet
            cores), for estimates.
    """

    folder: Path
    name: str
    recipe: str
    build: Callable[[Path], None]
    usual_s: float = 1.0
    usual_mb: int = 0

    @property
    def key(self) -> str:
        return hashlib.sha256(self.recipe.encode()).hexdigest()[:KEY_LENGTH]

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}-{self.key}"

    @property
    def unfinished(self) -> Path:
        """The folder where it is built before it is renamed."""
        return self.folder / f".{self.name}-{self.key}.new"

    @property
    def ready(self) -> bool:
        return self.path.is_dir()

    def make(self, progress: Progress) -> None:
        """Build it unless it is there."""
        if self.ready:
            return
        started = time.monotonic()
        progress(f"{self.name}: building")
        staged = self.unfinished
        clear(staged)
        staged.mkdir(parents=True)
        self.build(staged)
        staged.rename(self.path)
        progress(f"{self.name}: built in {time.monotonic() - started:.1f} s")

    def link(self) -> None:
        """Give it its plain name too, for those who read it from outside the lab."""
        link = self.folder / self.name
        if not link.is_symlink() or link.readlink() != Path(self.path.name):
            staged = self.folder / f".{self.name}.link"
            staged.unlink(missing_ok=True)
            staged.symlink_to(self.path.name)
            staged.rename(link)

    def drop_others(self) -> None:
        """Delete what earlier recipes, or interrupted builds, left."""
        for path in [
            *self.folder.glob(f"{self.name}-{'?' * KEY_LENGTH}"),
            *self.folder.glob(f".{self.name}-*.new"),
        ]:
            if path != self.path:
                clear(path)


def mounts_below(path: Path) -> list[Path]:
    """Mount points at and below a path, deepest first."""
    points = map(Path, mount_points())
    found = [point for point in points if point == path or path in point.parents]
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def unmount(path: Path) -> None:
    """Unmount whatever is mounted at and below a path."""
    for point in mounts_below(path):
        if run(["umount", point], check=False).returncode:
            run(["umount", "--lazy", point], check=False)
    if left := mounts_below(path):
        raise Failed(f"cannot unmount {left[0]}", hint="A program of yours may be working in it.")


def clear(path: Path) -> None:
    """Delete a tree, never what is mounted into it."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        unmount(path)
        shutil.rmtree(path)


def enter(
    tree: Path,
    argv: Sequence[str],
    *,
    log: Path,
    binds: Mapping[Path, Path] | None = None,
    read_only: Mapping[Path, Path] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a program inside a tree, with the machine's network and nothing else of it.

    Args:
        binds: directory of the machine -> place in the tree, writable.
        read_only: the same, not writable.
    """
    command: list[str] = ["systemd-nspawn", "--quiet", f"--directory={tree}", "--register=no"]
    command += ["--keep-unit", "--as-pid2", "--resolv-conf=copy-host", "--timezone=off"]
    command += [f"--bind={source}:{target}" for source, target in (binds or {}).items()]
    command += [f"--bind-ro={source}:{target}" for source, target in (read_only or {}).items()]
    command += [f"--setenv={name}={value}" for name, value in (environment or {}).items()]
    # the machine may lack what nspawn's filter wants; a small tmpfs /tmp is too small for pip
    outer = {**os.environ, "SYSTEMD_SECCOMP": "0", "SYSTEMD_NSPAWN_TMPFS_TMP": "0"}
    run([*command, *argv], env=outer, log=log)
