"""The best use of two Sparks: one of them, both together, or one replica on each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from spark_cluster.config.launch import Launch
from spark_cluster.config.schema import Document, Hidden, PrintedAs, Rounded, derived, printed
from spark_cluster.plan.evidence import Evidence
from spark_cluster.plan.fit import Fit, fit
from spark_cluster.plan.plan import speed
from spark_cluster.plan.planner import Planner, Question, Subject, must_generate
from spark_cluster.plan.room import NodeMemory
from spark_cluster.plan.speed.estimate import range_text
from spark_cluster.plan.speed.serving import of_launch
from spark_cluster.plan.whole_model import whole_gib

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
    question: Question,
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
    launch, constants, users = subject.launch, planner.constants, question.concurrency
    geometry = planner.geometry(subject)
    weights = whole_gib(launch, of_launch(launch, geometry))
    roomy = launch.without_flags(*LIMITS)

    def fitted(tp: int, nodes: Sequence[NodeMemory]) -> Fit:
        runtime = constants.measured_runtime_gib
        return fit(roomy.at_size(tp), geometry, nodes, weights, runtime_gib=runtime)

    def topology(name: str, title: str, tp: int) -> Topology:
        fits = fitted(tp, rooms[:tp])
        fast = speed(
            fits,
            constants,
            context=question.context,
            prompt=question.prompt,
            concurrency=users,
            acceptance=subject.acceptance,
            own=planner.measured(launch.at_size(tp), users, question.context),
        )
        return Topology(
            name,
            title,
            fits,
            tok_s_user=fast.tok_s,
            user_range=fast.range,
            tok_s_total=fast.tok_s * users,
            ttfr_s=fast.prefill.seconds.expected,
            requests=_requests(fits),
            why_not=_why_not(fits, subject.sizes),
            evidence=fast.evidence,
        )

    one, both = topology("one", "one Spark", 1), topology("tp2", "TP=2 over both", 2)
    found = (one, both, _replicas(one, fitted(1, rooms[1:2]), users))
    best, why = _choose(purpose, found)
    rivals = _rivals(purpose, best, found) if best else ()
    if best and rivals:
        undecided = (best, *rivals)
        return Advice(purpose, users, None, _overlap(undecided), found, (), undecided)
    needs = _needs(best, launch, users) if best else ()
    return Advice(purpose, users, best, why, found, needs)


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
        return None, "it fits neither one Spark nor two"
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
