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

if TYPE_CHECKING:
    from spark_cluster.recipe import Recipe


@dataclass(frozen=True)
class Allowances:
    """What the user named.

    Args:
        files: files and folders of the laptop that may be sent to the nodes, with all in them.
        env: variables of the laptop's environment that the containers may be given.
    """

    files: tuple[Path, ...] = ()
    env: tuple[str, ...] = ()

    def __add__(self, other: Allowances) -> Allowances:
        return Allowances(self.files + other.files, self.env + other.env)


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
