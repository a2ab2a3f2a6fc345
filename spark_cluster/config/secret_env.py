"""The secrets that a recipe refers to, from the laptop's environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spark_cluster.config.allowance_checks import env_must_be_allowed
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe


def secrets_of_laptop(recipe: Recipe) -> dict[str, str]:
    """Variable of the containers to its value.

    Raises:
        Refused: the user has not allowed one; no value is read then.
        UsageError: a variable is not set here; nothing was started.
    """
    env_must_be_allowed(recipe)
    missing = [ref.env for ref in recipe.secret_env.values() if not os.environ.get(ref.env)]
    if missing:
        raise UsageError(
            f"recipe {recipe.name} asks for the variable {missing[0]} of this machine, "
            "which is not set or empty",
            hint=f"export {missing[0]}=..., or take it out of the recipe's env",
        )
    return {name: os.environ[ref.env] for name, ref in recipe.secret_env.items()}
