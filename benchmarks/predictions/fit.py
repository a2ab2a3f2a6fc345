"""The fit of the speed formulas' constants: robust least squares with weak prior knowledge.

Both formulas are linear in the inverse of their rates and in their fixed times. Every run counts
alike, however many points it has. Where the points do not tell a constant, as when a whole family
is left out, it stays near what is expected of the hardware (`PRIOR`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.predictions.points import Measured
from spark_cluster.plan.estimate import Constants
from spark_cluster.plan.prefill import PrefillWork, work
from spark_cluster.plan.serving import draft_read
from spark_cluster.plan.speed import DecodeStep, step

SHARINGS = (0.75, 0.8, 0.85, 0.9, 0.95)
HUBER = 0.10
"""Error from which on a point counts less."""
TRUST = 0.1
"""Weight of what is expected beforehand: one standard deviation of a constant costs as much as a
run that is so far off, as a share."""
ROUNDS = 40
TURNS = 6
"""Fits of a prefill's constants, one after the other; they no longer change then."""

EXPERTS = ("prefill_moe_tflops", "prefill_moe_fp4_tflops", "prefill_read")
"""Constants of which a prefill depends on the first two or on the last."""


Column = Callable[[Measured, DecodeStep | PrefillWork], float]
"""What the formula multiplies with a constant's coefficient, seconds."""


@dataclass(frozen=True)
class Term:
    """A constant in the equations.

    Attributes:
        prior: expected value; `spread` of its coefficient, as a share of it.
        inverse: the coefficient is one over the constant.
    """

    name: str
    prior: float
    spread: float
    column: Column
    inverse: bool


BANDWIDTH = Constants().bandwidth


def _decode_terms() -> tuple[Term, ...]:
    """What a step's time is made of; the prior says that matrices reach 0.82 of the bandwidth, as
    copying memory does, pieces as small as experts 0.65, and an all-reduce 60 us."""

    def read(name: str) -> Column:
        return lambda _, one: float(getattr(_of_step(one).read, name)) / BANDWIDTH

    def dense(one: Measured, cost: DecodeStep | PrefillWork) -> float:
        drafted = _passes(one) * draft_read(one.serving)
        return (_of_step(cost).read.dense + drafted) / BANDWIDTH

    return (
        Term("dense", 0.82, 0.15, dense, True),
        Term("dense_fp4", 0.70, 0.20, read("dense_fp4"), True),
        Term("experts", 0.65, 0.20, read("experts"), True),
        Term("experts_4bit", 0.70, 0.20, read("experts_4bit"), True),
        Term("experts_fp4", 0.50, 0.30, read("experts_fp4"), True),
        Term("eta_kv", 0.80, 0.20, lambda _, one: _of_step(one).cache / BANDWIDTH, True),
        Term("step_ms", 2.0, 0.7, _once, False),
        Term("allreduce_us", 60.0, 0.2, lambda _, one: _reduces(one, sockets=False), False),
        Term("allreduce_socket_us", 180.0, 0.5, lambda _, one: _reduces(one, sockets=True), False),
        Term("draft_ms", 2.0, 0.5, lambda m, _: _passes(m) * 1e-3, False),
    )


def _passes(one: Measured) -> int:
    """Return the passes of the drafter in a step."""
    return min(one.run.drafted, 1) if one.run.drafts_at_once else one.run.drafted


def _once(_: Measured, __: DecodeStep | PrefillWork) -> float:
    return 1e-3


def _of_step(one: DecodeStep | PrefillWork) -> DecodeStep:
    assert isinstance(one, DecodeStep)
    return one


def _of_work(one: DecodeStep | PrefillWork) -> PrefillWork:
    assert isinstance(one, PrefillWork)
    return one


def _reduces(cost: DecodeStep | PrefillWork, *, sockets: bool) -> float:
    one = _of_step(cost)
    return one.allreduces * 1e-6 if one.sockets is sockets else 0.0


def _prefill_terms() -> tuple[Term, ...]:
    """What a prefill's time is made of; priors from the data sheet's ratio of formats."""

    def tera(name: str) -> Column:
        return lambda _, one: float(getattr(one, name)) / 1e12 / _of_work(one).tp

    def passes(_: Measured, cost: DecodeStep | PrefillWork) -> float:
        one = _of_work(cost)
        return one.activations / BANDWIDTH / one.tp

    return (
        Term("prefill_tflops", 110.0, 0.15, tera("fast"), True),
        Term("prefill_bf16_tflops", 70.0, 0.1, tera("slow"), True),
        Term("prefill_unpacked_tflops", 45.0, 0.2, tera("unpacked"), True),
        Term("prefill_unpacked_fp8_tflops", 40.0, 0.1, tera("unpacked_fp8"), True),
        Term("prefill_moe_tflops", 50.0, 0.15, tera("experts"), True),
        Term("prefill_moe_fp4_tflops", 100.0, 0.3, tera("experts_fp4"), True),
        Term("attention_tflops", 15.0, 0.5, tera("attention"), True),
        Term("flash_tflops", 80.0, 0.2, tera("flash"), True),
        Term("scan_tflops", 8.0, 0.4, tera("scan"), True),
        Term("activation_passes", 15.0, 0.15, passes, False),
        Term("prefill_ms", 20.0, 0.7, _once, False),
        Term("prefill_read", 1.5, 0.15, lambda _, one: _of_work(one).read / BANDWIDTH, False),
    )


DECODE, PREFILL = _decode_terms(), _prefill_terms()


class Equations:
    """The equations of all points, made once; fits leave some of them out."""

    def __init__(self, points: Sequence[Measured]) -> None:
        self.decode = [m for m in points if m.situation not in ("prefill", "drafted")]
        self.prefill = [m for m in points if m.situation == "prefill"]
        self.steps = {
            sharing: _rows(DECODE, self.decode, [_step(m, sharing) for m in self.decode])
            for sharing in SHARINGS
        }
        self.costs = works = [work(m.serving, m.point.prompt, m.point.cached) for m in self.prefill]
        exchanged = [
            one.exchanged / Constants().link + one.routed / BANDWIDTH / one.tp for one in works
        ]
        self.works = _rows(PREFILL, self.prefill, works)
        self.exchanged = np.array(exchanged) / [m.seconds for m in self.prefill]

    def fit(self, use: Callable[[Measured], bool]) -> Constants:
        """Fit all constants to the points that are to be used."""
        chosen = np.array([use(m) for m in self.decode])
        weights = _weights([m for m in self.decode if use(m)])
        fits = {
            sharing: _robust(rows[chosen], np.ones(int(chosen.sum())), weights, DECODE)
            for sharing, rows in self.steps.items()
        }
        sharing = min(fits, key=lambda each: fits[each][1])
        decoded = _values(DECODE, fits[sharing][0])
        return constants({**decoded, **self._prefilled(use), "sharing": sharing})

    def _prefilled(self, use: Callable[[Measured], bool]) -> dict[str, float]:
        """Return the constants of prefills: which of reading and computing experts takes longer
        depends on them, so they are fitted several times.
        """
        some = np.array([use(m) for m in self.prefill])
        weights = _weights([m for m in self.prefill if use(m)])
        goals = 1 - self.exchanged[some]
        found = {term.name: term.prior for term in PREFILL}
        for _ in range(TURNS):
            current = replace(Constants(), **found)  # type: ignore[arg-type]
            reads = np.array([cost.reads_experts(current) for cost in self.costs])
            rows = self.works.copy()
            for column, term in enumerate(PREFILL):
                if term.name in EXPERTS:
                    rows[reads != (term.name == "prefill_read"), column] = 0.0
            found = _values(PREFILL, _robust(rows[some], goals, weights, PREFILL)[0])
        return found


def constants(found: Mapping[str, float]) -> Constants:
    """Return the constants from the terms of the equations."""
    named = dict(found)
    dense, experts = named.pop("dense"), named.pop("experts")
    named["eta_dense"], named["eta_moe"] = dense, experts
    named["fp4_pace"] = named.pop("dense_fp4") / dense
    named["moe4_pace"] = named.pop("experts_4bit") / experts
    named["moe_fp4_pace"] = named.pop("experts_fp4") / experts
    return replace(Constants(), **{n: _rounded(v) for n, v in named.items()})  # type: ignore[arg-type]


def _rounded(value: float) -> float:
    """Three digits: more are noise."""
    return float(f"{value:.3g}")


def _step(one: Measured, sharing: float) -> DecodeStep:
    return step(
        one.serving,
        one.point.context,
        one.point.users,
        sharing=sharing,
        drafted=one.run.drafted,
    )


def _rows(
    terms: Sequence[Term], points: Sequence[Measured], costs: Sequence[DecodeStep | PrefillWork]
) -> np.ndarray:
    rows = [
        [term.column(m, cost) / m.seconds for term in terms]
        for m, cost in zip(points, costs, strict=True)
    ]
    return np.array(rows).reshape(len(points), len(terms))


def _weights(points: Sequence[Measured]) -> np.ndarray:
    count = Counter(m.run.id for m in points)
    return np.array([1 / math.sqrt(count[m.run.id]) for m in points])


def _robust(
    rows: np.ndarray, goals: np.ndarray, weights: np.ndarray, terms: Sequence[Term]
) -> tuple[np.ndarray, float]:
    """Return the coefficients, and what is left unexplained."""
    usual = np.array([1 / t.prior if t.inverse else t.prior for t in terms])
    spread = usual * np.array([t.spread for t in terms])
    prior_rows, prior_goals = np.diag(TRUST / spread), TRUST * usual / spread
    found = usual
    for _ in range(ROUNDS):
        error = np.abs(rows @ found - goals)
        keep = weights * np.sqrt(np.minimum(1.0, HUBER / np.maximum(error, 1e-9)))
        whole = np.vstack([rows * keep[:, None], prior_rows])
        wanted = np.concatenate([goals * keep, prior_goals])
        found = np.linalg.lstsq(whole, wanted, rcond=None)[0]
        found = np.clip(found, *_limits(terms))
    error = np.abs(rows @ found - goals)
    huber = np.where(error < HUBER, error**2, 2 * HUBER * error - HUBER**2)
    left = float((weights**2 * huber).sum() + ((prior_rows @ found - prior_goals) ** 2).sum())
    return found, left


def _limits(terms: Sequence[Term]) -> tuple[np.ndarray, np.ndarray]:
    """No share of the bandwidth is above 0.95, and no time below none."""
    shares = {term.name for term in DECODE if term.inverse} | {"prefill_read"}
    low = [1 / 0.95 if t.name in shares else 1e-3 if t.inverse else 0.0 for t in terms]
    return np.array(low), np.full(len(terms), 1e3)


def _values(terms: Sequence[Term], found: np.ndarray) -> dict[str, float]:
    pairs = zip(terms, (float(value) for value in found), strict=True)
    return {term.name: 1 / value if term.inverse else value for term, value in pairs}
