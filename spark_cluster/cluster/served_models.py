"""The models that an inventory serves next to each other, and what cannot be asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.cluster.recipes import recipe_to_serve
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_cluster.cluster.opened import Opened
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.engine.models import ServedModel

OVERRIDE = "an override such as -o, -e or --max-model-len"


def serves_several(opened: Opened) -> bool:
    """Return whether the inventory names several models."""
    return not opened.inventory_is_missing and bool(opened.inventory.serve.recipes)


def must_be_for_all(given: Mapping[str, object]) -> None:
    """Refuse options that are for one recipe.

    Args:
        given: option to whether it was given.

    Raises:
        UsageError: with the first of them.
    """
    for option, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{option} is for one recipe, and the inventory serves several",
                hint="name the recipe to plan or serve it alone, or change the recipes: "
                "`spark-cluster recipes save` makes one with other values",
            )


def models_to_serve(opened: Opened, allow: Allowances) -> tuple[ServedModel, ...]:
    """Return the inventory's models; what cannot be is refused before any node is asked.

    Raises:
        SparkClusterError: a recipe is wrong, or they cannot be served next to each other.
    """
    from spark_cluster.engine.models import ServedModel, must_be_on_head, must_go_together

    head = opened.inventory.head.name
    found = tuple(
        ServedModel(
            recipe_to_serve(opened, entry.recipe, (), allow),
            entry.node or head,
            tuple(entry.aliases),
            entry.on_request,
        )
        for entry in opened.inventory.serve.recipes
    )
    must_go_together(found)
    must_be_on_head(found, head)
    return found
