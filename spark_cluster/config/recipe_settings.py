"""What a recipe says by itself of how it is served: whether it may be, and settings of roles.

A recipe may be someone else's, and whoever makes its image gets what is sent. So only what lies
next to it, or in the project, is sent unasked; `--allow-file` and `serve.allow_files` add to that.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.config.image_build import build_settings
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe, is_for_models, is_in, overlap, why_not_writable
from spark_cluster.config.recipe_schema import Patch, ReadinessCheck, must_be_served
from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import Refused, UsageError
from spark_cluster.node import paths
from spark_cluster.node.store.manifest import whole_folder

REPLICAS_INSTEAD = (
    "leave data_parallel (--data-parallel) out, and serve one replica on each Spark "
    "(`spark-cluster up --replicas 2`), or share the model with --tp"
)


def why_not_data_parallel(launch: Launch) -> str:
    """Return why the data-parallel ranks of a launch cannot be started here; empty when they can.

    An executor that is not known is no reason.
    """
    if launch.dp == 1:
        return ""
    if launch.engine != "vllm":
        why = "only vLLM's data parallel mode is started here"
    elif launch.executor not in (None, "ray"):
        why = f"Ray joins its ranks, and the executor is {launch.executor}"
    elif (shared := launch.tp * launch.pp) > 1:
        why = f"each rank is on one node here, and the recipe shares the model over {shared}"
    else:
        return ""
    return f"data_parallel: {launch.dp}: {why}"


def must_be_servable(recipe: Recipe, tp: int, rungs: Collection[ReadinessCheck]) -> None:
    """Look whether a recipe can and may be served at a size; no node is asked.

    Args:
        rungs: readiness checks that its engine can pass.

    Raises:
        Refused: it cannot, or the user's leave is missing.
    """
    must_be_served(recipe.kind, f"recipe {recipe.name}")
    recipe.check_size(tp)
    _must_start(recipe, tp)
    _must_have(recipe, rungs)
    must_be_allowed(recipe)


def _must_start(recipe: Recipe, tp: int) -> None:
    """Raise Refused for data-parallel ranks that cannot be joined here."""
    if why := why_not_data_parallel(of_recipe(recipe, tp)):
        raise Refused(f"recipe {recipe.name}: {why}", hint=REPLICAS_INSTEAD)


def _must_have(recipe: Recipe, known: Collection[ReadinessCheck]) -> None:
    """Raise Refused for a readiness check that the engine cannot pass."""
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
    # Not what is in the folder of a model: another download may have left a link there just now.
    own = [str(one.node_path) for one in (model, drafter) if one is not None]
    mounts = tuple(
        mount.volume
        for mount in recipe.mounts
        if not any(is_in(mount.source, folder) for folder in own)
    )
    venv = recipe.venv.path if recipe.venv else ""
    common = {"image": recipe.image.ref, "mounts": mounts, "venv": venv}
    common["allowed_env"] = recipe.allowances.env
    found = []
    if not model.in_hub_cache:
        chosen = model.model_dump(include={"name", "revision", "source", "directory"})
        found.append({**common, **chosen, **_place(recipe, model.node_path)})
    if drafter is not None and drafter.name is not None and not drafter.in_hub_cache:
        chosen = drafter.model_dump(include={"name", "revision"})
        found.append({**common, **chosen, "source": "hub", **_place(recipe, drafter.node_path)})
    return tuple(found)


def _place(recipe: Recipe, path: str | None) -> dict[str, str | None]:
    """Return the folder of a model, and that above it from which on containers may have written."""
    above = (*recipe.allowances.mounts, paths.MODELS_FOLDER)
    return {"path": path, "below": next((one for one in above if is_in(str(path), one)), "")}


FOLDER = paths.PATCHES
"""Where the laptop's files lie on the nodes."""


@dataclass(frozen=True)
class MountedPatch:
    """A patch as the containers see it.

    Attributes:
        source: its path on the nodes.
        target: the file of the image that it replaces.
        upload: the laptop's file; None when it comes with the model.
        why: what it repairs.
    """

    source: str
    target: str
    upload: Path | None
    why: str

    @property
    def volume(self) -> str:
        """The mount as containers take it, `SOURCE:TARGET:ro`."""
        return f"{self.source}:{self.target}:ro"


def mounted_patches(recipe: Recipe) -> tuple[MountedPatch, ...]:
    """Return the patches of a recipe.

    Raises:
        Refused: a file is not on the laptop.
    """
    return tuple(
        MountedPatch(
            _source(recipe, patch),
            patch.target,
            Path(patch.file) if patch.origin == "laptop" else None,
            patch.why,
        )
        for patch in recipe.patches
    )


def _source(recipe: Recipe, patch: Patch) -> str:
    """Its path on the nodes; a laptop's file has its hash in it, so that a new one is mounted."""
    if patch.origin == "model":
        return f"{recipe.model.node_path}/{patch.file}"
    file = Path(patch.file)
    if not file.is_file():
        raise Refused(
            f"the patch {file} of recipe {recipe.name} is not on this machine",
            hint="`file` of a patch is relative to the recipe",
        )
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return f"{FOLDER}/{digest[:12]}/{file.name}"


def secrets_of_laptop(recipe: Recipe) -> dict[str, str]:
    """Variable of the containers to its value.

    Raises:
        Refused: the user has not allowed one; no value is read then.
        UsageError: a variable is not set here; nothing was started.
    """
    env_must_be_allowed(recipe)
    missing = [ref.env for ref in recipe.secret_env.values() if not os.environ.get(ref.env)]
    if missing:
        raise UsageError(
            f"recipe {recipe.name} asks for the variable {missing[0]} of this machine, "
            "which is not set or empty",
            hint=f"export {missing[0]}=..., or take it out of the recipe's env",
        )
    return {name: os.environ[ref.env] for name, ref in recipe.secret_env.items()}


def must_be_allowed(recipe: Recipe) -> None:
    """Look at all that the recipe needs the user's leave for, before it is served.

    Raises:
        Refused: a file of the laptop, a variable of it, or a folder of the nodes was not named;
            or it runs outside a container or builds its image by scripts, and that was not
            allowed.
    """
    venv_must_be_allowed(recipe)
    build_must_be_allowed(recipe)
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    env_must_be_allowed(recipe)


def venv_must_be_allowed(recipe: Recipe) -> None:
    """Look whether the recipe runs outside a container: what it installs is root on the nodes.

    Raises:
        Refused: it does, and the user has not allowed that.
    """
    if recipe.runtime == "venv" and not recipe.allowances.venv:
        raise Refused(
            f"recipe {recipe.name} runs its engine outside a container, as root on the nodes "
            "(runtime: venv)",
            hint="if you trust the recipe and the packages it names: --allow-venv, or "
            "`allow_venv: true` under serve in the inventory",
        )
    path = recipe.venv.path if recipe.venv else ""
    for folder in recipe.allowances.mounts if path else ():
        if overlap(path, folder):
            raise Refused(
                f"recipe {recipe.name} has its environment at {path} (venv.path), and "
                f"recipes may write to {folder}: what they write there would run as root",
                hint="give venv.path a folder that is not below one of `allow_mounts`",
            )


def build_must_be_allowed(recipe: Recipe) -> None:
    """Look whether the recipe builds its image by commands of its own: they run as root.

    Raises:
        Refused: it does, or they can fetch something, and the user has not allowed that.
    """
    build = recipe.image.build
    if build is None or build.is_allowed(recipe.allowances):
        return
    how = "with access to the network" if build.fetches else "without a network"
    raise Refused(
        f"recipe {recipe.name} builds its image by commands that run as root in a container of the "
        f"nodes, {how}: {build.shown}",
        hint=f"read them in the recipe or next to it; if you trust them: {build.option}, or "
        f"`{build.option.removeprefix('--').replace('-', '_')}: true` under serve in the inventory",
    )


def files_must_be_allowed(recipe: Recipe) -> None:
    """Look at every file of the laptop that the recipe would have sent.

    Raises:
        Refused: one lies elsewhere, and the user has not named it.
    """
    for key, path in _files(recipe):
        if not recipe.allowances.holds(path):
            real = path.resolve()
            via = f" (a link to {shown(real)})" if real != path.absolute() else ""
            raise Refused(
                f"recipe {recipe.name} wants {shown(path)}{via} of this machine sent to the "
                f"nodes ({key}); it is outside the folders of the recipe and the project",
                hint=f"if you trust the recipe with it: --allow-file {shown(real)}, or "
                "`allow_files` under serve in the inventory",
            )


def _files(recipe: Recipe) -> Iterator[tuple[str, Path]]:
    for index, patch in enumerate(recipe.patches):
        if patch.origin == "laptop":
            yield f"patches[{index}].file", Path(patch.file)
    build = recipe.image.build
    for step in build.steps if build is not None else ():
        for file in step.files:
            yield f"image.build.steps.{step.name}", Path(file.file)
    directory = recipe.model.directory
    if directory is not None:
        yield "model.directory", directory
        for path in sorted(directory.rglob("*")):
            if path.is_symlink() or path.is_file():
                yield "model.directory", path


def missing_variables(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The recipe's variable and the laptop's, for each that the user has not named."""
    for name, reference in recipe.secret_env.items():
        if reference.env not in recipe.allowances.env:
            yield name, reference.env


def env_must_be_allowed(recipe: Recipe) -> None:
    """Look at every variable of the laptop that the recipe refers to; no value is read.

    Raises:
        Refused: the user has not named one.
    """
    for name, variable in missing_variables(recipe):
        raise Refused(
            f"recipe {recipe.name} asks for the variable {variable} of this machine given to its "
            f"containers (env.{name})",
            hint=f"if you trust the recipe and its image with it: --allow-env {variable}, or "
            "`allow_env` under serve in the inventory",
        )


def mounts_must_be_allowed(recipe: Recipe) -> None:
    """Look at every folder of the nodes that the recipe writes to, by its containers or itself.

    Raises:
        Refused: the user has not named one, or it is one of our own.
    """
    allowed = recipe.allowances
    for key, path, read_only in _reached(recipe):
        for own in allowed.own:
            if is_in(path, own) or (not read_only and overlap(path, own)):
                raise Refused(
                    f"recipe {recipe.name} wants {path} of the nodes ({key}); {own} is a folder of "
                    "spark-cluster's own by the inventory's settings",
                    hint="take another folder; models and caches are mounted by themselves",
                )
        why = "" if read_only else why_not_writable(path, allowed.mounts)
        if why and not (key.endswith(".path") and is_for_models(path)):
            raise Refused(
                f"recipe {recipe.name} wants to write to {path} of the nodes ({key}): {why}",
                hint=f"if you trust the recipe with it: --allow-mount {path}, or `allow_mounts` "
                "under serve in the inventory",
            )


def _reached(recipe: Recipe) -> Iterator[tuple[str, str, bool]]:
    """The key, folder of the nodes, and whether it is only read."""
    for index, mount in enumerate(recipe.mounts):
        yield f"mounts[{index}].source", mount.source, mount.read_only
    for key, model in (("model.path", recipe.model), ("drafter.path", recipe.drafter)):
        if model is not None and model.node_path and not model.in_hub_cache:
            yield key, model.node_path, False
    for key, path in recipe.image.archives.items():
        yield f"image.{key}", path, True
