"""A recipe at a size: what follows from it alone, asked of it once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_cluster.config import overrides
from spark_cluster.config.allowance_checks import must_be_allowed
from spark_cluster.config.build_steps import build_settings
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.model_kind import Rung, must_be_served
from spark_cluster.config.parallelism import REPLICAS_INSTEAD, why_not_data_parallel
from spark_cluster.config.patches import MountedPatch, mounted_patches
from spark_cluster.config.secret_env import secrets_of_laptop
from spark_cluster.errors import Refused
from spark_cluster.node.store.layout import whole_folder

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import EngineValue


@dataclass(frozen=True)
class SizedRecipe:
    """A recipe at a tensor-parallel size.

    Attributes:
        nodes: how many serve.
        secret_env: values of the laptop's variables that the containers are given.
        launch: what plans and rules look at.
        flags: the engine's, without dashes.
        overrides: engine arguments that the command line gave, in words.
        patches: files mounted over the image's own.
        image: settings of the role `images`.
        models: settings of the role `models`, for a model and a drafter with folders of their own.
        mounts: of the containers, `SOURCE:TARGET[:ro]`.
    """

    nodes: int
    secret_env: Mapping[str, str] = field(repr=False)
    launch: Launch
    flags: Mapping[str, EngineValue]
    overrides: str
    patches: tuple[MountedPatch, ...]
    image: Mapping[str, Any]
    models: tuple[Mapping[str, Any], ...]
    mounts: tuple[str, ...]


def sized_recipe(recipe: Recipe, tp: int, rungs: Collection[Rung]) -> SizedRecipe:
    """Return what a recipe says at a size, once it is clear that it may be served so.

    Args:
        rungs: of readiness that its engine can climb.

    Raises:
        Refused: the recipe cannot do this, the user's leave is missing, or a file is not there.
        UsageError: a variable is not set here.
    """
    must_be_served(recipe.kind, f"recipe {recipe.name}")
    recipe.check_size(tp)
    _must_start(recipe, tp)
    _must_climb(recipe, rungs)
    must_be_allowed(recipe)
    patches = mounted_patches(recipe)
    return SizedRecipe(
        nodes=recipe.nodes_for(tp),
        secret_env=secrets_of_laptop(recipe),
        launch=of_recipe(recipe, tp),
        flags=recipe.flags(tp),
        overrides=overrides.text(recipe.overrides),
        patches=patches,
        image=_image(recipe),
        models=_models(recipe),
        mounts=mounts_of(recipe, patches),
    )


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


def _image(recipe: Recipe) -> dict[str, Any]:
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


def _models(recipe: Recipe) -> tuple[Mapping[str, Any], ...]:
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
