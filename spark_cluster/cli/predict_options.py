"""The options of `predict` that say what is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_cluster.cli.app import App
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.planning.speed.serving import Serving


def served_by(app: App, given: Mapping[str, str | None]) -> tuple[Recipe | None, Serving]:
    """Return the recipe, if one is named, and what is served by the options.

    Raises:
        UsageError: they contradict each other, or name what is not known.
    """
    from spark_cluster import models as shapes
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.models.weights import must_be_known
    from spark_cluster.planning.speed.of_recipe import serving_of
    from spark_cluster.planning.speed.serving import (
        Serving,
        checkpoint_kv_dtype,
        checkpoint_quantization,
    )

    recipe, model, tp = given.get("recipe"), given.get("model"), int(given["tp"] or 1)
    asked, kv_dtype = given.get("quantization"), given.get("kv_dtype")
    if (recipe is None) == (model is None):
        raise UsageError(
            "found both --recipe and --model" if recipe else "give --model or --recipe",
            hint="--recipe NAME is a recipe; --model NAME|DIR a model on the hub or in a folder",
        )
    if recipe is not None:
        if asked or kv_dtype:
            raise UsageError("--quantization and --kv-dtype need --model; a recipe sets its own")
        known = load_recipe(recipe, app.project)
        return known, serving_of(known, tp, app.project.folder)
    geometry = shapes.find(str(model), app.project.folder)
    quantization = must_be_known(asked) if asked else checkpoint_quantization(geometry)
    kv_dtype = kv_dtype or checkpoint_kv_dtype(str(model), quantization, geometry)
    return None, Serving(geometry, quantization, kv_dtype, tp)
