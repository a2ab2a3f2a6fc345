"""Recipes to serve, and what comes of it.

The recipes are named or the inventory's, with the user's changes, and checked as far as that goes
without asking a node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.cli.opened import Opened
from spark_cluster.cli.results import RunSummary
from spark_cluster.config.extension import Allowances
from spark_cluster.config.launch import (
    DATA_PARALLEL,
    EXPERT_PARALLEL,
    Changes,
    Launch,
    Overrides,
    override,
    override_launch,
    read_overrides,
    value_text,
)
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import EngineValue, must_be_served
from spark_cluster.config.recipe_settings import must_be_allowed
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import Document, Flat, Hidden
from spark_cluster.engine.memory_phases import MemoryOfNode
from spark_cluster.engine.ray_cluster import RayStatus, must_suit
from spark_cluster.engine.resolve import ServedModel, must_be_on_head, must_go_together, serving
from spark_cluster.engine.result import Served, ServedModels
from spark_cluster.engine.vram import Stopped
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.vllm_flags import kinds
from spark_cluster.models.lookup import find

OVERRIDE = "an override such as -o, -e or --max-model-len"

GIVE_ONE = "give --recipe NAME, or `serve: {recipe: NAME}` in the inventory"


def must_be_given(name: str | None, message: str, hint: str = GIVE_ONE) -> str:
    """Return the name of a recipe, which the user or the inventory has to give.

    Raises:
        UsageError: neither has.
    """
    if name is None:
        raise UsageError(message, hint=hint)
    return name


def _own_recipe(opened: Opened, name: str, changes: Changes, allow: Allowances) -> Recipe:
    """Return a recipe of the user's own or a shipped one, with the user's changes.

    Raises:
        SparkClusterError: it is wrong, or others can write it.
    """
    recipe = changed(load_recipe(name, opened.project, opened.allowances(allow)), changes)
    opened.project.must_be_own(opened.project.resolve("recipes", name), f"recipe {recipe.name}")
    return recipe


def recipe_to_serve(opened: Opened, name: str, changes: Changes, allow: Allowances) -> Recipe:
    """Return a recipe that may be served, with the user's changes.

    Raises:
        SparkClusterError: it is wrong, is another's, or asks for what is not allowed.
    """
    recipe = _own_recipe(opened, name, changes, allow)
    must_be_served(recipe.kind, f"recipe {recipe.name}")
    must_be_allowed(recipe)
    return recipe


def size_on(opened: Opened, recipe: Recipe, tp: int | None) -> int:
    """Return the tensor-parallel size; what cannot be is refused before any node is asked.

    Raises:
        Refused: the recipe does not do this size, or there are too few nodes.
    """
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
    missing = f"no recipe is given, and {command} runs in the image of one"
    name = must_be_given(name or opened.inventory.serve.recipe, missing)
    recipe = _own_recipe(opened, name, (), allow)
    must_be_allowed(recipe)
    # Over all nodes that can share it, also where fewer usually serve the recipe.
    sizes = recipe.tensor_parallel.model_copy(update={"default": None})
    size = sizes.size_for(len(opened.nodes) // recipe.nodes_for(1))
    must_suit(recipe, recipe.nodes_for(size), command)
    recipe.check_size(size)
    serving(opened.nodes, size, recipe.nodes_for(size))
    return recipe, size


# -- several models --------------------------------------------------------------------------------


def serves_several(opened: Opened) -> bool:
    """Return whether the inventory names several models."""
    return not opened.inventory_is_missing and bool(opened.inventory.serve.recipes)


def must_be_for_all(given: Mapping[str, object]) -> None:
    """Refuse options that are for one recipe.

    Args:
        given: option to whether it was given.

    Raises:
        UsageError: with the first of them.
    """
    for option, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{option} is for one recipe, and the inventory serves several",
                hint="name the recipe to plan or serve it alone, or change the recipes: "
                "`spark-cluster recipes save` makes one with other values",
            )


def models_to_serve(opened: Opened, allow: Allowances) -> tuple[ServedModel, ...]:
    """Return the inventory's models; what cannot be is refused before any node is asked.

    Raises:
        SparkClusterError: a recipe is wrong, or they cannot be served next to each other.
    """
    head = opened.inventory.head.name
    found = tuple(
        ServedModel(
            recipe_to_serve(opened, entry.recipe, (), allow),
            entry.node or head,
            tuple(entry.aliases),
            entry.on_request,
        )
        for entry in opened.inventory.serve.recipes
    )
    must_go_together(found)
    must_be_on_head(found, head)
    return found


# -- overrides -------------------------------------------------------------------------------------


def texts(given: Mapping[str, EngineValue | None] | Sequence[str]) -> Changes:
    """Return overrides as KEY=VALUE texts.

    Args:
        given: engine arguments by name, or the texts. `env.NAME` is a variable of the containers,
            `image.ref` the image; None takes an argument away.
    """
    if isinstance(given, Mapping):
        return tuple(f"{key}={value_text(value)}" for key, value in given.items())
    return tuple(given)


def changed(recipe: Recipe, changes: Changes) -> Recipe:
    """Return the recipe with the changes.

    Raises:
        UsageError: a key that is not known, or a value that it cannot have.
    """
    if not changes:
        return recipe
    found = _read(changes, recipe.engine, set(recipe.engine_args))
    return override(recipe, _with_whole_experts(recipe, found))


def _with_whole_experts(recipe: Recipe, given: Overrides) -> Overrides:
    """Return overrides to data-parallel ranks with --enable-expert-parallel for experts.

    Without it vLLM cuts every expert into as many pieces as there are ranks. A dense model does not
    start with it (0.32, `ModelConfig.verify_with_parallel_config`), so it is left out where nothing
    at hand says that the model has experts, and where the user or the recipe names it.
    """
    ranks = given.get(DATA_PARALLEL)
    named = {*given, *recipe.engine_args} & {EXPERT_PARALLEL, f"no-{EXPERT_PARALLEL}"}
    if not isinstance(ranks, int) or ranks < 2 or named or not _has_experts(recipe):
        return given
    return {**given, EXPERT_PARALLEL: True}


def _has_experts(recipe: Recipe) -> bool:
    """True if the shape of the model says so, as far as it is known without asking the hub."""
    model = recipe.model
    with contextlib.suppress(UsageError, InvalidFile):
        if model.directory is not None:
            return find(model.directory).is_moe
        return find(model.name, base=model.base, revision=model.revision or "main").is_moe
    return False


def changed_launch(launch: Launch, changes: Changes) -> Launch:
    """Return a pasted command's launch with the changes.

    Raises:
        UsageError: as `changed`.
    """
    if not changes:
        return launch
    return override_launch(launch, _read(changes, launch.engine, set(launch.args)))


def _read(changes: Changes, engine: str, own: set[str]) -> Overrides:
    """The changes; a flag that is given already is known, whatever the tables say."""
    return read_overrides(changes, engine, {**dict.fromkeys(own, ""), **kinds(engine)})


# -- results: `up`, `down`, `ray up`, `ray down` ---------------------------------------------------


@dataclass(frozen=True)
class UpResult(Document):
    """The result of `up`.

    Attributes:
        run: how the run went.
        served: the verified endpoint; None where nothing was verified (check mode, a selection of
            roles).
        memory: the GPU memory of each node by phase, next to what the plan predicted.
        memory_plot: file of this machine with its course; None where nothing was started, without
            the extra `bench`, or of several models.
    """

    run: Flat[RunSummary]
    served: Flat[Served | None]
    memory: tuple[MemoryOfNode, ...]
    memory_plot: Path | None = None


@dataclass(frozen=True)
class UpModelsResult(UpResult):
    """The result of `up` of several models."""

    served: Flat[ServedModels | None]
    memory_plot: Hidden[Path | None] = None


@dataclass(frozen=True)
class DownResult(Document):
    """The result of `down`.

    Attributes:
        run: how the run went.
        stopped: the memory held before and after; None in check mode.
    """

    run: Flat[RunSummary]
    stopped: Flat[Stopped | None]


@dataclass(frozen=True)
class RayUpResult(Document):
    """The result of `ray up`.

    Attributes:
        run: how the run went.
        cluster: the Ray cluster; None in check mode and with a selection of roles.
    """

    run: Flat[RunSummary]
    cluster: RayStatus | None
