"""What a recipe says by itself of how it is served: whether it may be, and settings of roles."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_cluster.config.allowance_checks import must_be_allowed
from spark_cluster.config.build_steps import build_settings
from spark_cluster.config.model_kind import Rung, must_be_served
from spark_cluster.config.parallelism import REPLICAS_INSTEAD, why_not_data_parallel
from spark_cluster.errors import Refused
from spark_cluster.node.store.layout import whole_folder

if TYPE_CHECKING:
    from spark_cluster.config.patches import MountedPatch
    from spark_cluster.config.recipe import Recipe


def must_be_servable(recipe: Recipe, tp: int, rungs: Collection[Rung]) -> None:
    """Look whether a recipe can and may be served at a size; no node is asked.

    Args:
        rungs: of readiness that its engine can climb.

    Raises:
        Refused: it cannot, or the user's leave is missing.
    """
    must_be_served(recipe.kind, f"recipe {recipe.name}")
    recipe.check_size(tp)
    _must_start(recipe, tp)
    _must_climb(recipe, rungs)
    must_be_allowed(recipe)


def _must_start(recipe: Recipe, tp: int) -> None:
    """Raise Refused for data-parallel ranks that cannot be joined here."""
    why = why_not_data_parallel(
        recipe.data_parallel,
        engine=recipe.engine,
        executor=recipe.executor,
        tp=tp,
        stages=recipe.pipeline_parallel,
    )
    if why:
        raise Refused(f"recipe {recipe.name}: {why}", hint=REPLICAS_INSTEAD)


def _must_climb(recipe: Recipe, known: Collection[Rung]) -> None:
    """Raise Refused for a rung of readiness that the engine cannot do."""
    for rung in recipe.readiness.rungs:
        if rung not in known:
            raise Refused(
                f"recipe {recipe.name}: {recipe.dialect.title} has no rung '{rung}'",
                hint=f"readiness.rungs: {', '.join(sorted(known))}",
            )


def mounts_of(recipe: Recipe, patches: Sequence[MountedPatch]) -> tuple[str, ...]:
    """Return what the containers see of the node: mounts, the drafter's folder, patches."""
    path = recipe.drafter.node_path if recipe.drafter else None
    drafter = whole_folder(path) if path else ""
    found = (
        *(mount.volume for mount in recipe.mounts),
        *((f"{drafter}:{drafter}:ro",) if drafter else ()),
        *(patch.volume for patch in patches),
    )
    return tuple(dict.fromkeys(found))


def image_settings(recipe: Recipe) -> dict[str, Any]:
    """Settings of the role `images`.

    Raises:
        Refused: a file of a step is not the one that the recipe was made with.
    """
    image, build = recipe.image, recipe.image.build
    given = {"ref": image.ref, "digest": image.digest, "archive": image.archive}
    if build is None:
        return given
    given["dockerfile"] = build.text
    return {**given, **build_settings(build)} if build.steps else given


def model_settings(recipe: Recipe) -> tuple[Mapping[str, Any], ...]:
    """Settings of the role `models`, for what has a folder of its own."""
    model, drafter = recipe.model, recipe.drafter
    mounts = tuple(mount.volume for mount in recipe.mounts)
    venv = recipe.venv.path if recipe.venv else ""
    common = {"image": recipe.image.ref, "mounts": mounts, "venv": venv}
    found = []
    if not model.in_hub_cache:
        chosen = model.model_dump(include={"name", "revision", "source", "directory"})
        found.append({**common, **chosen, "path": model.node_path})
    if drafter is not None and drafter.name is not None and not drafter.in_hub_cache:
        chosen = drafter.model_dump(include={"name", "revision"})
        found.append({**common, **chosen, "source": "hub", "path": drafter.node_path})
    return tuple(found)
