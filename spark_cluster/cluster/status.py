"""Look at what serves, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.cluster.recipes import api_key, head_must_be_selected

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import Probe
    from spark_cluster.engine.launches import Upcoming
    from spark_cluster.engine.status import Status


def status(opened: Opened) -> Status:
    """Look at containers, Ray and health, and ask for a real completion; change nothing.

    Raises:
        UsageError: the head is not selected.
        SparkClusterError: no node is reached.
    """
    from spark_cluster.engine import state
    from spark_cluster.runner.options import Options

    key = api_key(opened)
    head_must_be_selected(opened, "; spark-cluster ping reaches single nodes")
    with opened.play("status", opened.nodes, Options(), change=False) as run:
        recipe = _recipe(opened)
        upcoming = _upcoming(opened, recipe)
        return state.status(run.open(fail_fast=False), key, _probe(recipe), upcoming)


def _recipe(opened: Opened) -> Recipe | None:
    """The inventory's recipe; None when it names none."""
    from spark_cluster.loader.recipes import load_recipe

    name = opened.inventory.serve.recipe
    return None if name is None else load_recipe(name, opened.project)


def _probe(recipe: Recipe | None) -> Probe:
    if recipe is not None:
        return recipe.probe
    from spark_cluster.config.recipe import Recipe

    usual: Probe = Recipe.model_fields["probe"].default
    return usual


def _upcoming(opened: Opened, recipe: Recipe | None) -> Upcoming | None:
    if recipe is None:
        return None
    from spark_cluster.engine.caches import root_on
    from spark_cluster.engine.launches import Upcoming

    return Upcoming(recipe, {node.name: root_on(node) for node in opened.nodes})
