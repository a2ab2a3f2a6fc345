"""The permissions that a user gives a recipe beyond those of every recipe.

A recipe may be someone else's. What it would take of the laptop, or reach on the nodes, is named
by the user first: with an option of the command, or under `serve` in the inventory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.node import paths


@dataclass(frozen=True)
class Allowances:
    """The permissions that the user named.

    Args:
        files: files and folders of the laptop that may be sent to the nodes, with all in them.
        env: variables of the laptop's environment that the containers may be given.
        mounts: folders of the nodes that may be written to, with all in them.
        venv: an engine may run outside a container, in a virtual environment of the node.
        build: scripts of a recipe may run as root in the build of its image.
        build_network: they may also fetch something.
        own: folders of the nodes that spark-cluster has by the inventory's settings (caches,
            environments), in which no recipe is allowed anything.
    """

    files: tuple[Path, ...] = ()
    env: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    venv: bool = False
    build: bool = False
    build_network: bool = False
    own: tuple[str, ...] = ()

    def __add__(self, other: Allowances) -> Allowances:
        return Allowances(
            self.files + other.files,
            self.env + other.env,
            self.mounts + other.mounts,
            self.venv or other.venv,
            self.build or other.build,
            self.build_network or other.build_network,
            self.own + other.own,
        )


NOTHING = Allowances()

OF_DOWNLOADS = {".gitattributes", ".gitignore", ".cache"}
"""Hidden names that downloaded models have."""

LAB_MODELS = Path(paths.CACHE, "lab/prepared/models")
"""What the lab has made for the shipped recipe lab-paris: nothing of the user's is in it."""


@dataclass(frozen=True)
class Allowed:
    """The places from which a recipe may send files.

    Args:
        recipe: the recipe's file; None allows nothing.
        project: the user's project folder.
        user: what the user named.
    """

    recipe: Path | None = None
    project: Path | None = None
    user: Allowances = NOTHING

    def holds(self, path: Path) -> bool:
        """Return whether a file may be sent; links are followed first."""
        real = path.resolve()
        named = [path.expanduser().resolve() for path in (*self.user.files, LAB_MODELS)]
        if any(real.is_relative_to(one) for one in named):
            return True
        return any(_inside(real, folder) for folder in self._folders())

    def _folders(self) -> Iterator[Path]:
        """The folders of recipe and project; not where all of the user's files are."""
        home = Path.home().resolve()
        for folder in (self.recipe and self.recipe.absolute().parent, self.project):
            if folder is not None and not home.is_relative_to(folder.resolve()):
                yield folder.resolve()


def _inside(path: Path, folder: Path) -> bool:
    """Return whether it is in the folder, and not in a hidden part of it (.git, .env, .ssh)."""
    if not path.is_relative_to(folder):
        return False
    parts = set(path.relative_to(folder).parts) - OF_DOWNLOADS
    return not any(part.startswith(".") for part in parts)
