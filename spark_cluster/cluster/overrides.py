"""Overrides of a recipe as a user gives them, `KEY=VALUE` texts or a mapping, read and applied."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.launch import Launch
    from spark_cluster.config.overrides import Overrides
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.config.recipe_schema import EngineValue

Changes: TypeAlias = tuple[str, ...]
"""KEY=VALUE texts; of two with one key the later one holds."""


def texts(given: Mapping[str, EngineValue | None] | Sequence[str]) -> Changes:
    """Return overrides as KEY=VALUE texts.

    Args:
        given: engine arguments by name, or the texts. `env.NAME` is a variable of the containers,
            `image.ref` the image; None takes an argument away.
    """
    if isinstance(given, Mapping):
        return tuple(f"{key}={_text(value)}" for key, value in given.items())
    return tuple(given)


def _text(value: EngineValue | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def changed(recipe: Recipe, changes: Changes) -> Recipe:
    """Return the recipe with the changes.

    Raises:
        UsageError: a key that is not known, or a value that it cannot have.
    """
    if not changes:
        return recipe
    from spark_cluster.config.overrides import apply

    found = _read(changes, recipe.engine, set(recipe.engine_args))
    return apply(recipe, _with_whole_experts(recipe, found))


def _with_whole_experts(recipe: Recipe, given: Overrides) -> Overrides:
    """Return overrides to data-parallel ranks with --enable-expert-parallel for experts.

    Without it vLLM cuts every expert into as many pieces as there are ranks. A dense model does not
    start with it (0.32, `ModelConfig.verify_with_parallel_config`), so it is left out where nothing
    at hand says that the model has experts, and where the user or the recipe names it.
    """
    from spark_cluster.config.overrides import DATA_PARALLEL, EXPERT_PARALLEL

    ranks = given.get(DATA_PARALLEL)
    named = {*given, *recipe.engine_args} & {EXPERT_PARALLEL, f"no-{EXPERT_PARALLEL}"}
    if not isinstance(ranks, int) or ranks < 2 or named or not _has_experts(recipe):
        return given
    return {**given, EXPERT_PARALLEL: True}


def _has_experts(recipe: Recipe) -> bool:
    """True if the shape of the model says so, as far as it is known without asking the hub."""
    from spark_cluster.errors import InvalidFile
    from spark_cluster.models import find

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
    from spark_cluster.config.overrides import apply_to_launch

    return apply_to_launch(launch, _read(changes, launch.engine, set(launch.args)))


def _read(changes: Changes, engine: str, own: set[str]) -> Overrides:
    """The changes; a flag that is given already is known, whatever the tables say."""
    from spark_cluster.config.overrides import read
    from spark_cluster.importers.vllm_flags import kinds

    return read(changes, engine, {**dict.fromkeys(own, ""), **kinds(engine)})
