"""Variants of a recipe: the same server with some engine arguments changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

from spark_cluster.bench.suite_schema import Sweep, Variant
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.errors import Refused


def variants(sweep: Sweep) -> Iterator[Variant]:
    """Yield every combination, the last argument changing fastest."""
    flags = list(sweep.engine_args)
    drafted: list[int | None] = [*sweep.num_speculative_tokens] or [None]
    for *values, tokens in product(*sweep.engine_args.values(), drafted):
        args = dict(zip(flags, values, strict=True))
        yield Variant.model_construct(engine_args=args, num_speculative_tokens=tokens)


def label(variant: Variant) -> str:
    """Return what differs from the recipe, such as `enforce-eager=true`; empty for nothing."""
    parts = [f"{flag}={_text(value)}" for flag, value in sorted(variant.engine_args.items())]
    if variant.num_speculative_tokens is not None:
        parts.append(f"num_speculative_tokens={variant.num_speculative_tokens}")
    parts += [f"{name}={value}" for name, value in sorted(variant.env.items())]
    return " ".join(parts)


def _text(value: EngineValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def varied(recipe: Recipe, variant: Variant) -> Recipe:
    """Return the recipe with a variant's changes.

    Raises:
        Refused: tokens to draft are given, and the recipe has no drafter.
    """
    changed: dict[str, object] = {}
    if variant.engine_args:
        args = {**recipe.engine_args, **variant.engine_args}
        changed["engine_args"] = {flag: value for flag, value in args.items() if value is not False}
        # The recipe's own field would win over the flag.
        if "gpu-memory-utilization" in variant.engine_args:
            changed["gpu_memory_utilization"] = None
    if variant.env:
        changed["env"] = {**recipe.env, **variant.env}
    tokens = variant.num_speculative_tokens
    if tokens == 0:
        changed["drafter"] = None
    elif tokens is not None:
        if recipe.drafter is None:
            raise Refused(
                f"recipe {recipe.name} has no drafter, so num_speculative_tokens cannot be "
                f"{tokens}",
                hint="give a recipe with a drafter, such as gemma4-26b-a4b-fp8-mtp",
            )
        changed["drafter"] = recipe.drafter.model_copy(update={"tokens": tokens})
    return recipe.model_copy(update=changed) if changed else recipe
