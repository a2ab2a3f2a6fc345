"""What to serve for what a user wants: the recipes that suit it, planned, the best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Hidden, derived
from spark_cluster.errors import Refused, SparkClusterError, UsageError
from spark_cluster.plan.planner import Planner, Question, Subject, of_a_recipe
from spark_cluster.plan.purpose import Topology, advise
from spark_cluster.plan.room import assumed
from spark_cluster.plan.speed.estimate import SMALLEST, Estimate

Want = Literal["chat", "coding", "vision", "embedding"]
Speed = Literal["latency", "throughput"]

CODING_CONTEXT = 65_536
"""Tokens of context that a coding agent should have at the least: its prompt, tools and files."""

USERS = {"latency": 1, "throughput": 16}
"""Concurrent requests for which recipes are compared."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A recipe and how to serve it.

    Attributes:
        option: of `up`, such as `--tp 2`.
        tok_s: of each user; `low` and `high` the range. 0 where nothing is generated.
        total_tok_s: of all users.
        context: tokens; None when the recipe leaves it to the model.
    """

    recipe: str
    description: str
    option: str
    tok_s: float
    low: float
    high: float
    total_tok_s: float
    context: int | None


def suits(recipe: Recipe, want: Want) -> bool:
    """Return whether a recipe is for what is wanted; `up` verifies it by the same rungs.

    A model in a folder of this machine is not proposed: its owner names it.
    """
    if recipe.model.directory is not None:
        return False
    if want == "embedding" or recipe.kind != "chat":
        return recipe.kind == want
    rungs = recipe.readiness.rungs
    if want == "vision":
        return "vision" in rungs
    if want == "coding":
        context = _context(recipe)
        return "tool_call" in rungs and (context is None or context >= CODING_CONTEXT)
    return True


def propose(
    planner: Planner, recipes: Iterable[Recipe], want: Want, speed: Speed, nodes: int
) -> list[Proposal]:
    """Return what fits so many idle Sparks, the fastest first, one recipe for each model.

    Args:
        speed: `latency` compares by the tokens/s of one user, `throughput` by those of all of 16.
    """
    best: dict[str, tuple[tuple[float, int], Proposal]] = {}
    for recipe in recipes:
        if not suits(recipe, want):
            continue
        found = _planned(planner, recipe, speed, nodes)
        if found is None:
            continue
        figure = found.tok_s if speed == "latency" else found.total_tok_s
        rank = (round(figure, 1), len(recipe.readiness.rungs))  # of equals, what verifies more
        model = recipe.model.base or recipe.model.name
        if model not in best or rank > best[model][0]:
            best[model] = rank, found
    ranked = sorted(best.values(), key=lambda one: one[0], reverse=True)
    return [proposal for _, proposal in ranked]


def _planned(planner: Planner, recipe: Recipe, speed: Speed, nodes: int) -> Proposal | None:
    """Return how a recipe serves best; None when it cannot, or nothing is known of its model."""
    sizes = recipe.tensor_parallel
    if sizes.min > nodes:
        return None
    subject = of_a_recipe(recipe, of_recipe(recipe, sizes.min))
    question = Question(concurrency=USERS[speed])
    try:
        if nodes == 1 or recipe.kind != "chat":
            return _on_one(planner, recipe, subject, question)
        advice = advise(planner, subject, assumed(2), question, speed)
    except (UsageError, Refused):
        return None
    faster = max(advice.undecided, key=lambda topology: topology.tok_s_user, default=None)
    topology = advice.best or faster
    return None if topology is None else _of_topology(recipe, topology)


def _on_one(
    planner: Planner, recipe: Recipe, subject: Subject, question: Question
) -> Proposal | None:
    plan = planner.plan(subject, assumed(1), question)
    if not plan.feasible:
        return None
    found = Proposal(
        recipe.name, recipe.description, "--tp 1", 0.0, 0.0, 0.0, 0.0, _context(recipe)
    )
    if recipe.kind != "chat":
        return found
    (low, high), tok_s = plan.speed.range, plan.speed.tok_s
    total = tok_s * question.concurrency
    return replace(found, tok_s=tok_s, low=low, high=high, total_tok_s=total)


def _of_topology(recipe: Recipe, topology: Topology) -> Proposal:
    low, high = topology.user_range
    return Proposal(
        recipe.name,
        recipe.description,
        topology.up_option,
        topology.tok_s_user,
        low,
        high,
        topology.tok_s_total,
        _context(recipe),
    )


def _context(recipe: Recipe) -> int | None:
    value = recipe.engine_args.get("max-model-len")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# Short answers for a list of recipes: does each fit on one or two idle Sparks, and how fast.

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
