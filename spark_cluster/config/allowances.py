"""The permissions that a user gives a recipe beyond those of every recipe.

A recipe may be someone else's. What it would take of the laptop, or reach on the nodes, is named
by the user first: with an option of the command, or under `serve` in the inventory.
"""

from __future__ import annotations

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
        folders: of the recipe and of the project, whose files may be sent.
    """

    files: tuple[Path, ...] = ()
    env: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    venv: bool = False
    build: bool = False
    build_network: bool = False
    own: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    def __add__(self, other: Allowances) -> Allowances:
        return Allowances(
            self.files + other.files,
            self.env + other.env,
            self.mounts + other.mounts,
            self.venv or other.venv,
            self.build or other.build,
            self.build_network or other.build_network,
            self.own + other.own,
            self.folders + other.folders,
        )

    def holds(self, path: Path) -> bool:
        """Return whether a file of the laptop may be sent; links are followed first."""
        real = path.resolve()
        named = [path.expanduser().resolve() for path in (*self.files, LAB_MODELS)]
        if any(real.is_relative_to(one) for one in named):
            return True
        home = Path.home().resolve()  # not a folder where all of the user's files are
        folders = (folder.resolve() for folder in self.folders)
        return any(_inside(real, one) for one in folders if not home.is_relative_to(one))


NOTHING = Allowances()

OF_DOWNLOADS = {".gitattributes", ".gitignore", ".cache"}
"""Hidden names that downloaded models have."""

LAB_MODELS = Path(paths.CACHE, "lab/prepared/models")
"""What the lab has made for the shipped recipe lab-paris: nothing of the user's is in it."""


def _inside(path: Path, folder: Path) -> bool:
    """Return whether it is in the folder, and not in a hidden part of it (.git, .env, .ssh)."""
    if not path.is_relative_to(folder):
        return False
    parts = set(path.relative_to(folder).parts) - OF_DOWNLOADS
    return not any(part.startswith(".") for part in parts)
