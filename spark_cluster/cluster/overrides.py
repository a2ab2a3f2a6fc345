"""Overrides of a recipe as a user gives them, `KEY=VALUE` texts or a mapping, read and applied."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

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

    return apply(recipe, _read(changes, recipe.engine, set(recipe.engine_args)))


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
