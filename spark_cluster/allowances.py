"""What the user allows a recipe beyond what any recipe may have.

A recipe may be somebody else's. What it would take of the laptop, or reach on the nodes, is named
by the user first: with an option of the command, or under `serve` in the inventory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.errors import Refused
from spark_cluster.userfiles.node_paths import why_no_data

if TYPE_CHECKING:
    from spark_cluster.recipe import Recipe


@dataclass(frozen=True)
class Allowances:
    """What the user named.

    Args:
        files: files and folders of the laptop that may be sent to the nodes, with all in them.
        env: variables of the laptop's environment that the containers may be given.
        mounts: folders of the nodes that may be written to, with all in them.
    """

    files: tuple[Path, ...] = ()
    env: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()

    def __add__(self, other: Allowances) -> Allowances:
        return Allowances(
            self.files + other.files, self.env + other.env, self.mounts + other.mounts
        )


NOTHING = Allowances()


def missing_variables(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The recipe's variable and the laptop's, for each that the user has not named."""
    for name, reference in recipe.secret_env.items():
        if reference.env not in recipe.allowances.env:
            yield name, reference.env


def env_must_be_allowed(recipe: Recipe) -> None:
    """Look at every variable of the laptop that the recipe refers to; no value is read.

    Raises:
        Refused: the user has not named one.
    """
    for name, variable in missing_variables(recipe):
        raise Refused(
            f"recipe {recipe.name} wants the variable {variable} of this machine given to its "
            f"containers (env.{name})",
            hint=f"if you trust the recipe and its image with it: --allow-env {variable}, or "
            "`allow_env` under serve in the inventory",
        )


def mounts_must_be_allowed(recipe: Recipe) -> None:
    """Look at every folder of the nodes that the recipe writes to, by its containers or itself.

    Raises:
        Refused: one is not for data, and the user has not named it.
    """
    for key, path in _written(recipe):
        why = why_no_data(path, recipe.allowances.mounts)
        if why:
            raise Refused(
                f"recipe {recipe.name} wants to write to {path} of the nodes ({key}): {why}",
                hint=f"if you trust the recipe with it: --allow-mount {path}, or `allow_mounts` "
                "under serve in the inventory",
            )


def _written(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for index, mount in enumerate(recipe.mounts):
        if not mount.read_only:
            yield f"mounts[{index}].source", mount.source
    yield "model.path", recipe.model.node_path
    if recipe.drafter is not None and recipe.drafter.node_path:
        yield "drafter.path", recipe.drafter.node_path
