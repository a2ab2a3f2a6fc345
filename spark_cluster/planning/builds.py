"""Other builds of the same model, which take less memory: of recipes, and of models known here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.errors import SparkClusterError
from spark_cluster.loader.recipes import load_recipe
from spark_cluster.models import known_models
from spark_cluster.models.naming import base_of

if TYPE_CHECKING:
    from spark_cluster.loader.project import Project


def builds(launch: Launch, project: Project) -> Iterator[tuple[str, Launch]]:
    """Yield what to name instead, and the launch with that build; nothing is tried here.

    Recipes first; of the models in the table those that no recipe serves.
    """
    base = _base(launch)
    served = {(launch.model, launch.quantization)}
    for name, path in project.list("recipes").items():
        try:
            recipe = load_recipe(path, project)
        except SparkClusterError:  # said by `recipes list`
            continue
        sizes = recipe.tensor_parallel
        other = of_recipe(recipe, min(max(launch.tp, sizes.min), sizes.max))
        what = (recipe.model.name, recipe.model.quantization)
        if what not in served and _base(other) == base:
            served.add(what)
            yield f"recipe {name}", other
    models = {name for name, _ in served}
    for model in known_models():
        if model not in models and (base_of(model) or model) == base:
            plain = launch.without_flags("quantization")
            other = replace(plain, model=model, base=base, quantization=None, weights_gib=None)
            yield f"model {model}", other


def _base(launch: Launch) -> str:
    return launch.base or base_of(launch.model) or launch.model
