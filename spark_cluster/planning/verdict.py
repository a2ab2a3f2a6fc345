"""Short answers for a list of recipes: does each fit on one or two idle Sparks, and how fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.config.launch import of_recipe
from spark_cluster.document import Document, Hidden, derived
from spark_cluster.errors import SparkClusterError
from spark_cluster.planning.planner import Planner, Question
from spark_cluster.planning.room import assumed
from spark_cluster.planning.speed.estimate import SMALLEST, Estimate
from spark_cluster.planning.subject import of_a_recipe

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe

SIZES = (1, 2)
"""Sparks for which a verdict is given."""


@dataclass(frozen=True)
class Verdict(Document):
    """Whether a recipe works on a number of idle Sparks, before anything is downloaded.

    Attributes:
        feasible: None when that is not known, such as for a model of unknown shape.
        reason: why it does not work or is not known; empty when it works.
        decode: tokens/s of one request; None where none is predicted: for a toy, and for
            models that generate no text.
    """

    tp: Hidden[int]
    feasible: bool | None
    reason: str = ""
    decode: Hidden[Estimate | None] = None
    decode_tok_s = derived(Estimate | None, lambda found: found.decode and found.decode.rounded())


def verdicts(recipe: Recipe, planner: Planner, sizes: Sequence[int] = SIZES) -> Iterator[Verdict]:
    """Yield a verdict for each of the sizes that the recipe does."""
    rooms = assumed(max(sizes))
    for tp in sizes:
        if not recipe.tensor_parallel.min <= tp <= recipe.tensor_parallel.max:
            continue
        try:
            plan = planner.plan(of_a_recipe(recipe, of_recipe(recipe, tp)), rooms, Question())
        except SparkClusterError as error:
            yield Verdict(tp, None, error.message)
            continue
        errors = (issue.title for issue in plan.issues if issue.severity == "error")
        reason = next(iter([*plan.reasons, *errors]), "")
        generates = recipe.kind == "chat"
        shown = plan.feasible and generates and plan.speed.decode.bytes_per_token >= SMALLEST
        yield Verdict(tp, plan.feasible, reason, plan.speed.best.request if shown else None)
