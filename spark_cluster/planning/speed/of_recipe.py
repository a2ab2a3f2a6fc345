"""The speed of a recipe."""

from __future__ import annotations

from pathlib import Path

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.models.find import find
from spark_cluster.models.hub.lookup import Hub
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.decode import decode
from spark_cluster.planning.speed.estimate import Estimate
from spark_cluster.planning.speed.serving import Serving, of_launch
from spark_cluster.planning.speed.speculative import speculative

CONTEXT = 1024
"""Tokens in the cache of a request when nothing is said, as in `plan` and `predict speed`: a prompt
of 512 and half an answer."""


def serving_of(recipe: Recipe, tp: int, *folders: Path, hub: Hub | None = None) -> Serving:
    """Return what a recipe serves.

    Args:
        folders: where the folders of models are looked for, too.
        hub: where the model is looked up; None: what is kept on this machine.

    Raises:
        UsageError: the model's shape, its quantization or the type of its cache is not known, or
            it cannot be divided so.
        InvalidFile: its config.json is wrong.
    """
    launch = of_recipe(recipe, tp)
    where = recipe.model.directory or recipe.model.name
    revision = launch.revisions.get(recipe.model.name) or "main"
    shape = find(where, *folders, base=recipe.model.base, hub=hub, revision=revision)
    return of_launch(launch, shape)


def expected(
    recipe: Recipe,
    serving: Serving,
    *,
    context: float = CONTEXT,
    constants: Constants | None = None,
) -> Estimate:
    """Tokens/s of one request that is alone, with the recipe's drafter when it has one."""
    drafter = recipe.drafter
    if drafter is None:
        return decode(serving, context, constants=constants).request
    return speculative(
        serving, context, drafter.tokens, drafter.acceptance, constants=constants
    ).request
