"""What to serve for what a user wants: the recipes that suit it, planned, the best first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Hidden, PrintedAs, Rounded, derived, printed
from spark_cluster.errors import Refused, SparkClusterError, UsageError
from spark_cluster.plan.estimate import SMALLEST, Estimate, range_text
from spark_cluster.plan.evidence import Evidence
from spark_cluster.plan.fit import Fit
from spark_cluster.plan.plan import Speed
from spark_cluster.plan.planner import PlannedLoad, Planner, Subject, must_generate, of_a_recipe
from spark_cluster.plan.room import NodeMemory, assumed

# The best use of two Sparks: one of them, both together, or one replica on each.

Purpose = Literal["latency", "throughput", "capacity"]

REPLICAS = ((1, 1.00), (7, 1.13), (8, 1.30), (16, 1.75), (32, 1.91))
"""Users, and the tokens/s of two replicas over those of one Spark: Llama-3.3-70B FP8 on two DGX
Sparks (community topology benchmark). Our formulas know no queueing, so this is measured."""


LIMITS = ("gpu-memory-utilization", "kv-cache-memory-bytes", "max-num-seqs")
"""Flags that limit the cache or the requests at a time."""


@dataclass(frozen=True)
class Topology(Document):
    """A way to use the nodes.

    Attributes:
        name: `one`, `tp2` or `replicas`.
        fit: on one set of its nodes; a replica's own.
        tok_s_user: tokens/s of each of the users; `user_range` the range it lies in: as measured
            where it was, else as predicted.
        tok_s_total: of all of them.
        ttfr_s: to the first response to a prompt, when nothing else is served.
        requests: of full length that the cache holds at a time.
        why_not: why it cannot be; empty when it can.
    """

    name: str
    title: Hidden[str]
    fit: Hidden[Fit]
    tok_s_user: Annotated[float, Rounded(2), Field(serialization_alias="tok_s_per_user")]
    user_range: Hidden[tuple[float, float]]
    tok_s_total: Annotated[float, Rounded(2)]
    ttfr_s: Annotated[float, Rounded(3)]
    requests: Annotated[float, Rounded(2), Field(serialization_alias="concurrent_requests")]
    why_not: Annotated[tuple[str, ...], Field(serialization_alias="reasons")]
    evidence: Hidden[Evidence | None] = None
    fits = derived(bool, lambda found: not found.why_not)
    tok_s_per_user_low = derived(Annotated[float, Rounded(2)], lambda found: found.user_range[0])
    tok_s_per_user_high = derived(Annotated[float, Rounded(2)], lambda found: found.user_range[1])
    measured = derived(str | None, lambda found: found.evidence and found.evidence.text)
    gpu_memory_utilization = derived(float | None, "fit.share")

    @printed
    def up_option(self) -> str:
        """The option of `up` that serves so."""
        return {"one": "--tp 1", "tp2": "--tp 2", "replicas": "--replicas 2"}[self.name]

    def range_text(self, users: int = 1) -> str:
        """Return its range in words, tokens/s of so many users."""
        low, high = (users * figure for figure in self.user_range)
        return f"{self.title} {range_text(low, high)}"


def _name(best: Topology | None) -> str | None:
    return best.name if best else None


@dataclass(frozen=True)
class Advice(Document):
    """The topology that serves a purpose best, and why; `best` is None when none fits, or when the
    ranges overlap.

    Attributes:
        undecided: those that fit and whose ranges overlap; empty when one is best.
        needs: flags of the best one that the launch does not have.
    """

    purpose: Annotated[Purpose, Field(serialization_alias="for")]
    users: int
    best: Annotated[Topology | None, PrintedAs(_name)]
    why: str
    topologies: tuple[Topology, ...]
    needs: tuple[str, ...] = ()
    undecided: Hidden[tuple[Topology, ...]] = ()
    decidable = derived(bool, lambda advice: not advice.undecided)


def replica_gain(users: int) -> float:
    """Return the gain of two replicas over one Spark with so many users, as a factor."""
    if users >= REPLICAS[-1][0]:
        return REPLICAS[-1][1]
    for (low, at_low), (high, at_high) in pairwise(REPLICAS):
        if low <= users <= high:
            return at_low + (at_high - at_low) * (users - low) / (high - low)
    return 1.0


def advise(
    planner: Planner,
    subject: Subject,
    rooms: Sequence[NodeMemory],
    question: PlannedLoad,
    purpose: Purpose,
) -> Advice:
    """Compare one Spark, both together and a replica on each, for users at the same time.

    Args:
        subject: at any size; it is tried at 1 and 2, each time with all the memory that is safe
            and with as many requests at a time as there are users.
        rooms: two nodes.

    Raises:
        UsageError: as `Planner.fit`.
        Refused: the model generates nothing.
    """
    must_generate(subject)
    launch, users = subject.launch, question.concurrency
    geometry, roomy = planner.geometry(subject), launch.without_flags(*LIMITS)

    def fitted(tp: int, nodes: Sequence[NodeMemory]) -> Fit:
        return planner.fit(replace(subject, launch=roomy.at_size(tp)), nodes, geometry)

    def topology(name: str, title: str, tp: int) -> Topology:
        fits = fitted(tp, rooms[:tp])
        fast = planner.speed(launch.at_size(tp), fits, question, subject.acceptance)
        return _topology(name, title, fits, fast=fast, sizes=subject.sizes)

    one, both = topology("one", "one Spark", 1), topology("tp2", "TP=2 over both", 2)
    found = (one, both, _replicas(one, fitted(1, rooms[1:2]), users))
    best, why = _choose(purpose, found)
    rivals = _rivals(purpose, best, found) if best else ()
    if best and rivals:
        undecided = (best, *rivals)
        return Advice(purpose, users, None, _overlap(undecided), found, (), undecided)
    needs = _needs(best, launch, users) if best else ()
    return Advice(purpose, users, best, why, found, needs)


def _topology(
    name: str,
    title: str,
    fits: Fit,
    *,
    fast: Speed,
    sizes: tuple[int, int],
) -> Topology:
    """Return one way to serve, with its speed and why it is not possible.

    Args:
        sizes: fewest and most nodes that the model is known to run on.
    """
    return Topology(
        name,
        title,
        fits,
        tok_s_user=fast.tok_s,
        user_range=fast.range,
        tok_s_total=fast.tok_s * fast.concurrency,
        ttfr_s=fast.prefill.seconds.expected,
        requests=_requests(fits),
        why_not=_why_not(fits, sizes),
        evidence=fast.evidence,
    )


def _rivals(purpose: Purpose, best: Topology, found: Sequence[Topology]) -> tuple[Topology, ...]:
    """Return those that could be as good as the best one, as far as is known.

    One Spark and a replica on each rest on the same figure, so that between them the measured gain
    decides; how many requests the caches hold is computed exactly.
    """
    if purpose == "capacity":
        return ()
    alone = ("one", "replicas")
    others = [t for t in found if not t.why_not and (t.name in alone) != (best.name in alone)]
    return tuple(t for t in others if t.user_range[1] >= best.user_range[0])


def _overlap(undecided: Sequence[Topology]) -> str:
    ranges = ", ".join(topology.range_text() for topology in undecided)
    return (
        f"not decidable: the ranges overlap ({ranges} tokens/s for each user); measure both with "
        "`spark-cluster bench run`"
    )


def _needs(best: Topology, launch: Launch, users: int) -> tuple[str, ...]:
    found = []
    share, had = best.fit.share, launch.number("gpu-memory-utilization")
    at_a_time = launch.number("max-num-seqs")
    if share is not None and (had or at_a_time) and share != had:  # else it is what `auto` gives
        found.append(f"--gpu-memory-utilization {share:.2f}")
    each = math.ceil(users / 2) if best.name == "replicas" else users
    if at_a_time and at_a_time < each:
        found.append(f"--max-num-seqs {each} (it has {at_a_time:g})")
    return tuple(found)


def _why_not(fitted: Fit, sizes: tuple[int, int]) -> tuple[str, ...]:
    tp, (low, high) = fitted.launch.tp, sizes
    unknown = () if low <= tp <= high else (f"the recipe is not known to run with --tp {tp}",)
    return (*unknown, *fitted.reasons)


def _requests(fitted: Fit) -> float:
    return fitted.cache.max_concurrency if fitted.cache else 0.0


def _replicas(one: Topology, other: Fit, users: int) -> Topology:
    gain = replica_gain(users)
    return replace(
        one,
        name="replicas",
        title="a replica on each",
        tok_s_user=one.tok_s_user * gain,
        user_range=(one.user_range[0] * gain, one.user_range[1] * gain),
        tok_s_total=one.tok_s_total * gain,
        requests=one.requests + _requests(other),
        why_not=tuple(dict.fromkeys((*one.why_not, *other.reasons))),
    )


def _choose(purpose: Purpose, found: Sequence[Topology]) -> tuple[Topology | None, str]:
    able = [topology for topology in found if not topology.why_not]
    if not able:
        return None, "it fits on neither one Spark nor two"
    figures: dict[Purpose, tuple[str, Callable[[Topology], float]]] = {
        "latency": ("tokens/s for each user", lambda t: t.tok_s_user),
        "throughput": ("tokens/s in all", lambda t: t.tok_s_total),
        "capacity": ("requests of full length at a time", lambda t: t.requests),
    }
    what, figure = figures[purpose]
    best = max(able, key=figure)
    said = f"{figure(best):.1f} {what}"
    if len(able) == 1:
        return best, f"{said}; nothing else fits"
    one = found[0]
    if best is one:
        return best, f"{said}; a second Spark gives no gain for this"
    return (
        best,
        said if one.why_not else f"{said}, {figure(best) / figure(one):.2f} times one Spark",
    )


Want = Literal["chat", "coding", "vision", "embedding"]
Preference = Literal["latency", "throughput"]

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
    planner: Planner, recipes: Iterable[Recipe], want: Want, speed: Preference, nodes: int
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


def _planned(planner: Planner, recipe: Recipe, speed: Preference, nodes: int) -> Proposal | None:
    """Return how a recipe serves best; None when it cannot, or nothing is known of its model."""
    sizes = recipe.tensor_parallel
    if sizes.min > nodes:
        return None
    subject = of_a_recipe(recipe, of_recipe(recipe, sizes.min))
    question = PlannedLoad(concurrency=USERS[speed])
    try:
        if nodes == 1 or recipe.kind != "chat":
            return _on_one(planner, recipe, subject, question)
        advice = advise(planner, subject, assumed(2), question, speed)
    except (UsageError, Refused):
        return None
    faster = max(advice.undecided, key=lambda topology: topology.tok_s_user, default=None)
    best = advice.best or faster
    if best is None:
        return None
    return _proposal(recipe, best.up_option, best.tok_s_user, best.user_range, best.tok_s_total)


def _on_one(
    planner: Planner, recipe: Recipe, subject: Subject, question: PlannedLoad
) -> Proposal | None:
    plan = planner.plan(subject, assumed(1), question)
    if not plan.feasible:
        return None
    if recipe.kind != "chat":
        return _proposal(recipe, "--tp 1", 0.0, (0.0, 0.0), 0.0)
    fast = plan.speed
    return _proposal(recipe, "--tp 1", fast.tok_s, fast.range, fast.tok_s * question.concurrency)


def _proposal(
    recipe: Recipe, option: str, tok_s: float, span: tuple[float, float], total: float
) -> Proposal:
    about = recipe.name, recipe.description, option
    return Proposal(*about, tok_s, *span, total, _context(recipe))


def _context(recipe: Recipe) -> int | None:
    value = recipe.engine_args.get("max-model-len")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# Short answers for a list of recipes: does each fit on one or two idle Sparks, and how fast.

SIZES = (1, 2)
"""Sparks for which a verdict is given."""


@dataclass(frozen=True)
class SizeVerdict(Document):
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


def verdicts(
    recipe: Recipe, planner: Planner, sizes: Sequence[int] = SIZES
) -> Iterator[SizeVerdict]:
    """Yield a verdict for each of the sizes that the recipe does."""
    rooms = assumed(max(sizes))
    for tp in sizes:
        if not recipe.tensor_parallel.min <= tp <= recipe.tensor_parallel.max:
            continue
        try:
            plan = planner.plan(of_a_recipe(recipe, of_recipe(recipe, tp)), rooms, PlannedLoad())
        except SparkClusterError as error:
            yield SizeVerdict(tp, None, error.message)
            continue
        errors = (issue.title for issue in plan.issues if issue.severity == "error")
        reason = next(iter([*plan.reasons, *errors]), "")
        generates = recipe.kind == "chat"
        shown = plan.feasible and generates and plan.speed.decode.bytes_per_token >= SMALLEST
        yield SizeVerdict(tp, plan.feasible, reason, plan.speed.best.request if shown else None)
