"""What is said of the model of an imported recipe: its size, or why that is not known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.loader.project import Project
    from spark_cluster.models.hub import Hub


def about_model(path: Path, project: Project, hub: Hub) -> str:
    """Return one line about the model of a recipe; what is read of it is kept for `plan`."""
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.models.memory import GIB
    from spark_cluster.planning.speed.of_recipe import serving_of

    try:
        recipe = load_recipe(path, project)
        serving = serving_of(recipe, recipe.tensor_parallel.min, project.folder, hub=hub)
        weights = serving.weights
    except SparkClusterError as error:
        return f"the model's size is not known: {error.message}"
    source = "counted from its tensors" if weights.counted else "computed from its shape"
    size = weights.memory_bytes() / GIB
    return f"{recipe.model.name}: {serving.quantization}, {size:.1f} GiB of weights ({source})"
