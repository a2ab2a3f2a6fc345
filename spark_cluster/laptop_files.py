"""Which files of the laptop a recipe may have sent to the nodes.

A recipe may be somebody else's, and whoever makes its image gets what is sent. So only what lies
next to it, or in the project, is sent unasked; `--allow-file` and `serve.allow_files` add to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.allowances import (
    NOTHING,
    Allowances,
    env_must_be_allowed,
    mounts_must_be_allowed,
)
from spark_cluster.errors import Refused
from spark_cluster.userfiles.yamlfile import shown

if TYPE_CHECKING:
    from spark_cluster.recipe import Recipe


OF_DOWNLOADS = {".gitattributes", ".gitignore", ".cache"}
"""Hidden names that downloaded models have."""

LAB_MODELS = Path("/var/cache/spark-cluster/lab/prepared/models")
"""What the lab has made for the shipped recipe lab-paris: nothing of the user's is in it."""


@dataclass(frozen=True)
class Allowed:
    """Where files may be that a recipe has sent.

    Args:
        recipe: the recipe's file; None allows nothing.
        project: the user's project folder.
        user: what the user named.
    """

    recipe: Path | None = None
    project: Path | None = None
    user: Allowances = NOTHING

    def holds(self, path: Path) -> bool:
        """Whether a file may be sent; links are followed first."""
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


def must_be_allowed(recipe: Recipe) -> None:
    """Look at all that the recipe needs the user's leave for, before it is served.

    Raises:
        Refused: a file of the laptop, a variable of it, or a folder of the nodes was not named.
    """
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    env_must_be_allowed(recipe)


def files_must_be_allowed(recipe: Recipe) -> None:
    """Look at every file of the laptop that the recipe would have sent.

    Raises:
        Refused: one lies elsewhere, and the user has not named it.
    """
    for key, path in _files(recipe):
        if not recipe.laptop.holds(path):
            real = path.resolve()
            via = f" (a link to {shown(real)})" if real != path.absolute() else ""
            raise Refused(
                f"recipe {recipe.name} wants {shown(path)}{via} of this machine sent to the "
                f"nodes ({key}); it is outside the folders of the recipe and the project",
                hint=f"if you trust the recipe with it: --allow-file {shown(real)}, or "
                "`allow_files` under serve in the inventory",
            )


def _files(recipe: Recipe) -> Iterator[tuple[str, Path]]:
    for index, patch in enumerate(recipe.patches):
        if patch.origin == "laptop":
            yield f"patches[{index}].file", Path(patch.file)
    directory = recipe.model.directory
    if directory is not None:
        yield "model.directory", directory
        for path in sorted(directory.rglob("*")):
            if path.is_symlink() or path.is_file():
                yield "model.directory", path


def _inside(path: Path, folder: Path) -> bool:
    """Whether it is in the folder, and not in a hidden part of it (.git, .env, .ssh)."""
    if not path.is_relative_to(folder):
        return False
    parts = set(path.relative_to(folder).parts) - OF_DOWNLOADS
    return not any(part.startswith(".") for part in parts)
