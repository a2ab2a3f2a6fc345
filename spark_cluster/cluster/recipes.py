"""A recipe that may be served here, and the number of nodes that serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.cluster.overrides import Changes, changed
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.config.recipe import Recipe


def recipe_to_serve(opened: Opened, name: str, changes: Changes, allow: Allowances) -> Recipe:
    """Return a recipe that may be served, with the user's changes.

    Raises:
        SparkClusterError: it is wrong, is another's, or asks for what is not allowed.
    """
    from spark_cluster.config.allowance_checks import must_be_allowed
    from spark_cluster.config.model_kind import must_be_served
    from spark_cluster.loader.recipes import load_recipe

    recipe = changed(load_recipe(name, opened.project, opened.allowances(allow)), changes)
    opened.project.must_be_own(opened.project.resolve("recipes", name), f"recipe {recipe.name}")
    must_be_served(recipe.kind, f"recipe {recipe.name}")
    must_be_allowed(recipe)
    return recipe


def size_on(opened: Opened, recipe: Recipe, tp: int | None) -> int:
    """Return the tensor-parallel size; what cannot be is refused before any node is asked.

    Raises:
        Refused: the recipe does not do this size, or there are too few nodes.
    """
    from spark_cluster.engine.nodes import serving

    nodes = opened.nodes
    size = tp if tp is not None else recipe.size_for(len(nodes))
    recipe.check_size(size)
    serving(nodes, size, recipe.nodes_for(size))
    return size


def recipe_for_ray(
    opened: Opened, name: str | None, command: str, allow: Allowances
) -> tuple[Recipe, int]:
    """Return the recipe in whose image Ray runs, and over how many nodes; before any is asked.

    Args:
        name: None takes the inventory's.
        command: that wants it, for messages.

    Raises:
        UsageError: there is no recipe.
        SparkClusterError: it may not be used, or joins no nodes over Ray.
    """
    from spark_cluster.config.allowance_checks import must_be_allowed
    from spark_cluster.engine.nodes import serving
    from spark_cluster.engine.ray_cluster import must_suit
    from spark_cluster.loader.recipes import load_recipe

    name = name or opened.inventory.serve.recipe
    if name is None:
        raise UsageError(
            f"no recipe is given, and {command} runs in the image of one",
            hint="give --recipe NAME, or `serve: {recipe: NAME}` in the inventory",
        )
    recipe = load_recipe(name, opened.project, opened.allowances(allow))
    opened.project.must_be_own(opened.project.resolve("recipes", name), f"recipe {recipe.name}")
    must_be_allowed(recipe)
    # Over all nodes that can share it, also where fewer usually serve the recipe.
    sizes = recipe.tensor_parallel.model_copy(update={"default": None})
    size = sizes.size_for(len(opened.nodes) // recipe.nodes_for(1))
    must_suit(recipe, recipe.nodes_for(size), command)
    recipe.check_size(size)
    serving(opened.nodes, size, recipe.nodes_for(size))
    return recipe, size


def head_must_be_selected(opened: Opened, hint: str = "") -> None:
    """Look whether the head, which serves, is among the selected nodes.

    Raises:
        UsageError: it is not.
    """
    if not any(node.is_head for node in opened.nodes):
        head = opened.inventory.head.name
        raise UsageError(
            f"--limit {opened.limit} leaves out the head, which serves",
            hint=f"the head is {head}{hint}",
        )


def api_key(opened: Opened) -> str | None:
    """Return the endpoint's API key; None when it has none.

    Raises:
        SparkClusterError: the inventory's reference to it leads to nothing.
    """
    return opened.inventory.api_key()
