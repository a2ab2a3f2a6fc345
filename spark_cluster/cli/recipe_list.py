"""The list of all recipes that a project sees, the broken ones included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import SparkClusterError
from spark_cluster.loader.recipes import load_recipe

if TYPE_CHECKING:
    from spark_cluster.config.recipe_schema import Measured
    from spark_cluster.loader.project import Project
    from spark_cluster.planning.evidence import Evidence
    from spark_cluster.planning.speed.estimate import Estimate


@dataclass(frozen=True)
class Entry:
    """A file of the folders `recipes/`.

    Attributes:
        own: it is the user's own, not a shipped one.
        recipe: None when the file is wrong; then `error` says why.
    """

    name: str
    path: Path
    own: bool
    recipe: Recipe | None = None
    error: SparkClusterError | None = None


def entries(project: Project) -> Iterator[Entry]:
    """Every recipe by name, the user's own before ours; a broken file is an entry like others."""
    for name, path in project.list("recipes").items():
        own = not path.is_relative_to(project.shipped / "recipes")
        try:
            yield Entry(name, path, own, load_recipe(path, project))
        except SparkClusterError as error:
            yield Entry(name, path, own, error=error)


def sizes(recipe: Recipe) -> tuple[int, ...]:
    """The tensor-parallel sizes that are shown."""
    return recipe.tensor_parallel.usual


def headlines(recipe: Recipe) -> list[Measured]:
    """The decode speed of one request: each source's first figure for each size."""
    found: dict[tuple[int, str], Measured] = {}
    for measured in recipe.measured:
        if measured.decode_tok_s is not None and measured.concurrency == 1 and not measured.depth:
            found.setdefault((measured.tp, measured.source), measured)
    return sorted(found.values(), key=lambda m: m.tp)


def expected(recipe: Recipe, project: Project) -> dict[int, Estimate]:
    """Size to the predicted decode speed of one request; without what cannot be predicted, such as
    the speed of the lab's tiny model, which nothing here was fitted to.

    Raises:
        InvalidFile: the project's own calibration is wrong.
    """
    from spark_cluster.cli.predict_options import too_large
    from spark_cluster.planning.speed import of_recipe
    from spark_cluster.planning.speed.constants import load_constants
    from spark_cluster.planning.speed.estimate import SMALLEST

    found: dict[int, Estimate] = {}
    if recipe.kind != "chat":  # it generates nothing
        return found
    constants = load_constants(project)
    for tp in sizes(recipe):
        with contextlib.suppress(SparkClusterError):  # the model's shape is not known, say
            serving = of_recipe.serving_of(recipe, tp, project.folder)
            if serving.weights.step_bytes() < SMALLEST or too_large(serving):
                continue
            found[tp] = of_recipe.expected(recipe, serving, constants=constants)
    return found


def evidence(recipe: Recipe, project: Project) -> dict[int, Evidence]:
    """Size to what others measured of a recipe, with one user."""
    from spark_cluster.cli.predict_options import too_large
    from spark_cluster.config.launch import of_recipe as launched
    from spark_cluster.planning.evidence import Case, by_others
    from spark_cluster.planning.speed.of_recipe import CONTEXT, serving_of

    found = {}
    for tp in sizes(recipe):
        with contextlib.suppress(SparkClusterError):
            launch, serving = launched(recipe, tp), serving_of(recipe, tp, project.folder)
            names = (launch.model, launch.base or "")
            case = Case(names, serving, 1, CONTEXT, launch.drafted_tokens or 0)
            measured = None if too_large(serving) else by_others(case)
            if measured:
                found[tp] = measured
    return found


def document(
    entry: Entry, speeds: Mapping[int, Estimate], measured: Mapping[int, Evidence] | None = None
) -> dict[str, Any]:
    """Return it as `recipes list --json` prints it.

    Args:
        speeds: size to what is predicted for it; `measured` to what others measured.
    """
    about: dict[str, Any] = {"name": entry.name, "path": str(entry.path), "own": entry.own}
    if entry.recipe is None:
        return {**about, "valid": False, "error": entry.error.to_dict() if entry.error else None}
    recipe = entry.recipe
    return {
        **about,
        "valid": True,
        "description": recipe.description,
        "model": recipe.model.name,
        "kind": recipe.kind,
        "base": recipe.model.base,
        "quantization": recipe.model.quantization,
        "tensor_parallel": recipe.tensor_parallel.model_dump(exclude_none=True),
        "expected_tok_s": {str(tp): speed.to_dict() for tp, speed in speeds.items()},
        "measured_by_others": {
            str(tp): one.to_dict(speeds[tp]) for tp, one in (measured or {}).items() if tp in speeds
        },
        "measured_tok_s": [
            {"tp": m.tp, "decode_tok_s": m.decode_tok_s, "source": m.source, "note": m.note}
            for m in headlines(recipe)
        ],
    }
