"""The options of `predict` that say what is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cluster.cli.app import App
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.models.hub import Hub
    from spark_cluster.planning.evidence import Evidence
    from spark_cluster.planning.speed.serving import Serving


def served_by(
    app: App, given: Mapping[str, str | None], hub: Hub | None = None
) -> tuple[Recipe | None, Serving]:
    """Return the recipe, if one is named, and what is served by the options.

    Args:
        hub: where the model is looked up; None: what is kept on this machine.

    Raises:
        UsageError: they contradict each other, or name what is not known.
    """
    from spark_cluster import models as shapes
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.models.as_served import checkpoint_kv_dtype, checkpoint_quantization
    from spark_cluster.models.weights import must_be_known
    from spark_cluster.planning.speed.of_recipe import serving_of
    from spark_cluster.planning.speed.serving import Serving

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
        return known, serving_of(known, tp, app.project.folder, hub=hub)
    geometry = shapes.find(str(model), app.project.folder, hub=hub)
    quantization = must_be_known(asked) if asked else checkpoint_quantization(geometry)
    kv_dtype = kv_dtype or checkpoint_kv_dtype(str(model), quantization, geometry)
    return None, Serving(geometry, quantization, kv_dtype, tp)


def evidence_of(
    app: App, recipe: Recipe | None, serving: Serving, *, many: int, context: float, drafts: int
) -> Evidence | None:
    """Return what was measured of it, by the user's own runs first.

    Args:
        many: requests at a time.
        drafts: tokens drafted in a step.
    """
    from spark_cluster.bench.planned_speed import own_evidence
    from spark_cluster.config.launch import Launch, of_recipe
    from spark_cluster.planning.evidence import Case, own_first

    own = None
    launch = of_recipe(recipe, serving.tp) if recipe else Launch(serving.geometry.name)
    if recipe or not drafts:
        plain = replace(launch, tp=serving.tp, quantization=serving.quantization)
        own = own_evidence(app.project, launch if recipe else plain, many, context)
    names = (launch.model, launch.base or "")
    return own_first(own, Case(names, serving, many, context, drafts))


def too_large(serving: Serving) -> str:
    """Return why the weights do not fit an idle Spark; empty when they do."""
    from spark_cluster.models.memory import GIB, RESERVE_GIB
    from spark_cluster.planning.room import assumed

    (room,) = assumed(1)
    size = serving.weights.memory_bytes(serving.tp) / GIB
    if size + RESERVE_GIB <= room.available_gib:
        return ""
    each = " a node" if serving.tp > 1 else ""
    return (
        f"the weights take {size:.0f} GiB{each}, and an idle Spark has {room.available_gib:.0f} "
        f"available, of which the system keeps {RESERVE_GIB:g}"
    )
