"""The options that change a recipe's engine arguments for one run, without editing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_cluster.cli.app import with_options

if TYPE_CHECKING:
    from spark_cluster.config.launch import Launch
    from spark_cluster.config.overrides import Overrides
    from spark_cluster.config.recipe import Recipe

F = TypeVar("F", bound=Callable[..., Any])

NAMED = (
    "max-model-len",
    "max-num-seqs",
    "gpu-memory-utilization",
    "quantization",
    "kv-cache-dtype",
)
"""Flags that have an option of their own; the others are given as -o KEY=VALUE."""

Changes = tuple[str, ...]
"""KEY=VALUE texts."""


def overriding(function: F) -> F:
    """The options of commands that serve or plan a recipe, given to them as `changes`."""

    def collect(ctx: click.Context, /, **given: Any) -> Any:
        named = [(flag, given.pop(flag.replace("-", "_"))) for flag in NAMED]
        changes = tuple(f"{flag}={value}" for flag, value in named if value is not None)
        return ctx.invoke(function, changes=(*given.pop("options_given"), *changes), **given)

    return with_options(collect, function, _OPTIONS)


_OPTIONS = (
    click.option(
        "--max-model-len",
        metavar="TOKENS",
        help="Longest request instead of the recipe's, tokens; also such as 32k, or auto.",
    ),
    click.option("--max-num-seqs", metavar="N", help="Requests at a time instead of the recipe's."),
    click.option(
        "--gpu-memory-utilization",
        metavar="SHARE",
        help="Share of the memory instead of the recipe's, 0.05 to 0.95, or auto.",
    ),
    click.option(
        "--quantization", metavar="Q", help="The engine's --quantization instead of the recipe's."
    ),
    click.option(
        "--kv-cache-dtype", metavar="TYPE", help="Type of the KV cache instead of the recipe's."
    ),
    click.option(
        "-o",
        "--option",
        "options_given",
        multiple=True,
        metavar="KEY=VALUE",
        help="Engine argument instead of the recipe's; false or nothing takes it away; repeatable.",
    ),
)


def changed(recipe: Recipe, changes: Changes) -> Recipe:
    """Return the recipe with the changes of the command line.

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
