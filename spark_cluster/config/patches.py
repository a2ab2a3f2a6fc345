"""A recipe's patches: files mounted over the image's own, as the containers see them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.errors import Refused
from spark_cluster.node import paths

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import Patch

FOLDER = paths.PATCHES
"""Where the laptop's files lie on the nodes."""


@dataclass(frozen=True)
class MountedPatch:
    """A patch as the containers see it.

    Attributes:
        source: its path on the nodes.
        target: the file of the image that it replaces.
        upload: the laptop's file; None when it comes with the model.
        why: what it repairs.
    """

    source: str
    target: str
    upload: Path | None
    why: str

    @property
    def volume(self) -> str:
        """The mount as containers take it, `SOURCE:TARGET:ro`."""
        return f"{self.source}:{self.target}:ro"


def mounted_patches(recipe: Recipe) -> tuple[MountedPatch, ...]:
    """Return the patches of a recipe.

    Raises:
        Refused: a file is not on the laptop.
    """
    return tuple(
        MountedPatch(
            _source(recipe, patch),
            patch.target,
            Path(patch.file) if patch.origin == "laptop" else None,
            patch.why,
        )
        for patch in recipe.patches
    )


def _source(recipe: Recipe, patch: Patch) -> str:
    """Its path on the nodes; a laptop's file has its hash in it, so that a new one is mounted."""
    if patch.origin == "model":
        return f"{recipe.model.node_path}/{patch.file}"
    file = Path(patch.file)
    if not file.is_file():
        raise Refused(
            f"the patch {file} of recipe {recipe.name} is not on this machine",
            hint="`file` of a patch is relative to the recipe",
        )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{FOLDER}/{digest[:12]}/{file.name}"
