"""The type of a breakage, and the storage for what it replaced until it is undone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.errors import Failed
from spark_cluster_lab.node import LabNode

SHELF = "var/lib/lab/broken"
ABSENT = ".was-not-there"

Action = Callable[[LabNode], None]


def nothing(_node: LabNode) -> None:
    """Do nothing: what the shelf gives back undoes it, or nothing is needed."""


@dataclass(frozen=True)
class Breakage:
    """A way to break a node.

    Attributes:
        name: as `lab break NAME`.
        what: what it does, in a few words.
        finds: the checks that find it.
        act, undo: both may be called again.
        node: the usual node; it may need its peer too.
        probed: the checks that find it with `doctor --probe`.
        unit: the systemd unit that the node must have for it.
    """

    name: str
    what: str
    finds: tuple[str, ...]
    act: Action
    undo: Action = nothing
    node: str = "spark1"
    probed: tuple[str, ...] = ()
    unit: str = ""

    @property
    def checks(self) -> tuple[str, ...]:
        """The ids of all checks that find it."""
        return (*self.finds, *self.probed)

    @property
    def shelf(self) -> Path:
        """The folder on the node for what was replaced; it exists while the node is broken so."""
        return Path(SHELF, self.name)

    def is_in(self, node: LabNode) -> bool:
        return (node.root / self.shelf).is_dir()

    def break_(self, node: LabNode) -> bool:
        """Break a node; False when it was broken so already.

        Raises:
            Failed: the node lacks the unit; nothing was changed.
        """
        if self.is_in(node):
            return False
        if self.unit and "not-found" in sh(node, "systemctl show -P LoadState $1", self.unit):
            hint = "`spark-cluster -i lab provision` installs it"
            raise Failed(f"there is no {self.unit}", where=node.name, hint=hint)
        folder = node.root / self.shelf
        folder.mkdir(parents=True)
        try:
            self.act(node)
        except Failed:
            self.repair(node)
            raise
        return True

    def repair(self, node: LabNode) -> bool:
        """Repair a node; False when it was not broken so."""
        if not self.is_in(node):
            return False
        give_back(node, self.name)
        self.undo(node)
        shutil.rmtree(node.root / self.shelf)
        return True


def keep(node: LabNode, name: str, path: str) -> Path:
    """Keep a file (or that there is none) until it is undone; return its path on this machine."""
    target = node.root / path.lstrip("/")
    kept = node.root / SHELF / name / path.lstrip("/")
    kept.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        _copy(target, kept)
    else:
        kept.with_name(kept.name + ABSENT).touch()
        target.parent.mkdir(parents=True, exist_ok=True)
    return target


def give_back(node: LabNode, name: str) -> None:
    """Restore every kept file."""
    shelf = node.root / SHELF / name
    for kept in sorted(path for path in shelf.rglob("*") if path.is_file()):
        target = node.root / kept.relative_to(shelf)
        if target.name.endswith(ABSENT):
            target.with_name(target.name.removesuffix(ABSENT)).unlink(missing_ok=True)
        else:
            _copy(kept, target)


def _copy(source: Path, target: Path) -> None:
    staged = target.with_name(f".{target.name}.lab")
    shutil.copy2(source, staged)
    status = source.stat()
    os.chown(staged, status.st_uid, status.st_gid)
    staged.replace(target)


def by_state(
    name: str, what: str, finds: tuple[str, ...], *, node: str = "spark1", **changes: Any
) -> Breakage:
    """A breakage that only changes what the stand-ins show."""
    return Breakage(
        name,
        what,
        finds,
        act=lambda broken: broken.set_state(**changes),
        undo=lambda broken: broken.set_state(**dict.fromkeys(changes)),
        node=node,
    )


def script(text: str, *words: str) -> Action:
    """An action that runs a shell script as root in a node."""

    def act(node: LabNode) -> None:
        sh(node, text, *words)

    return act


def sh(node: LabNode, text: str, *words: str) -> str:
    """Run a shell script as root in a node; what it printed.

    Raises:
        Failed: it ended with another status than 0.
    """
    done = node.run(["sh", "-c", text, "lab", *words], check=False)
    if done.returncode:
        last = (done.stderr + done.stdout).strip().splitlines()[-1:]
        raise Failed(last[0] if last else f"status {done.returncode}", where=node.name)
    return done.stdout


def peer(node: LabNode) -> LabNode:
    """The other node.

    Raises:
        Failed: the lab has one node only.
    """
    others = [other for other in node.lab.nodes if other.name != node.name]
    if not others:
        raise Failed("there is no other node", where=node.name, hint="spark-cluster lab up")
    return others[0]
