"""A predicted figure with its range, and why the range is as wide as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_cluster.models.naming import table
from spark_cluster.plan.speed.constants import MEASURED_NODES, Constants
from spark_cluster.plan.speed.serving import Serving

SMALLEST = 1e8
"""Bytes of weights read for a token below which other things than reading decide; the smallest
model that the constants were fitted on reads 2.4 GB."""

SHOWN_FROM = 0.05
"""Tokens/s below which one decimal would print 0.0."""


def range_text(low: float, high: float) -> str:
    """Return a range of tokens/s in words.

    >>> range_text(1.26, 3.5), range_text(0.001, 0.002)
    ('1.3 to 3.5', 'under 0.1')
    """
    return f"{low:.1f} to {high:.1f}" if high >= SHOWN_FROM else "under 0.1"


@dataclass(frozen=True)
class Estimate:
    """A figure: tokens/s or seconds.

    Attributes:
        roofline: what the memory's bandwidth (or the chip's arithmetic) would give by itself.
    """

    expected: float
    low: float
    high: float
    roofline: float

    def rounded(self, digits: int = 2) -> Estimate:
        """Return the estimate as it is printed."""
        figures = (self.expected, self.low, self.high, self.roofline)
        return Estimate(*(round(each, digits) for each in figures))

    def times(self, factor: float) -> Estimate:
        """Return the estimate with all figures multiplied."""
        return Estimate(
            *(factor * each for each in (self.expected, self.low, self.high, self.roofline))
        )


@dataclass
class Uncertainty:
    """The uncertainty of a figure, as shares of it, and its reasons."""

    down: float
    up: float
    why: list[str] = field(default_factory=list)

    def more(self, reason: str, down: float, up: float | None = None) -> None:
        """Widen the range."""
        self.down = min(self.down + down * (1 - self.down), 0.9)
        self.up += down if up is None else up
        self.why.append(reason)

    def around(
        self, expected: float, roofline: float, constants: Constants, tp: int = 1
    ) -> Estimate:
        """Return the range around an expected speed; the bound is nowhere exceeded.

        Args:
            constants: of these the spread of the link is taken, where there are two nodes.
        """
        down, up = self.down, self.up
        if tp == MEASURED_NODES and constants.allreduce_high_us <= 1.5 * constants.allreduce_us:
            down, up = min(down, OWN_LINK), min(up, OWN_LINK)  # measured by the user
        low, high = expected * (1 - down), expected * (1 + up)
        return Estimate(expected, min(low, expected), min(max(high, expected), roofline), roofline)

    def text(self, basis: str) -> str:
        """Describe what a figure is based on."""
        if not self.why:
            return basis
        *most, last = self.why
        reasons = f"{', '.join(most)} and {last}" if most else last
        return f"{basis}; the range is wider for {reasons}"


OWN_LINK = 0.15
"""Range either way on two nodes where runs over the user's own link were given."""


def family(serving: Serving, doubt: Uncertainty) -> None:
    """Widen for what the measured runs do not cover."""
    geometry = serving.geometry
    if not geometry.known:
        doubt.more("a family that is guessed by its shape", 0.15)
    if not serving.dialect.planned:
        doubt.more(f"another engine ({serving.dialect.title})", 0.20)
    if serving.weights.step_bytes() < SMALLEST:
        doubt.more("a model so small that reading it takes no time", 0.50)
    if geometry.latent:
        doubt.more("its latent attention", 0.10)
    if serving.expert_parallel and serving.tp > 1:
        doubt.more("--enable-expert-parallel", 0.10)
    if serving.data_parallel > 1:
        doubt.more("data-parallel ranks, not measured on Sparks", 0.40)
    if serving.tp > MEASURED_NODES:
        doubt.more("more than two nodes", 0.15)


# Ranges by situation, and how far measured models are off the formulas.
#
# The file is written by `python -m benchmarks.predictions --write` from the measurements in
# `plan/data`; nothing in it is chosen by hand.


def correction(serving: Serving, situation: str) -> float | None:
    """Return how much faster than by the formulas a model is: measured over predicted, drawn
    towards 1 where few sources measured it; None for one that was not measured.

    Args:
        situation: `decode`, `tp`, `drafter` or `prefill`.
    """
    found: float | None = table("fitted", "plan")["models"].get(f"{layout(serving)} {situation}")
    return found


def layout(serving: Serving) -> str:
    """Name a model by what its speed follows from: layers, widths, experts and formats.

    Builds that lie alike have one name, whoever made them.
    """
    geometry, experts = serving.geometry, serving.geometry.experts
    formats = [
        serving.weights.part(name).format for name in ("attention", "mlp", "recurrent", "experts")
    ]
    kinds = sorted({each.replace("-online", "") for each in (*formats, *serving.mxfp4_layers)})
    count = f"-{experts.count}x{experts.top_k}" if experts else ""
    shape = f"{geometry.layers}x{geometry.hidden}{count}"
    return f"{geometry.model_type.removesuffix('_text')} {shape} {'+'.join(kinds)}"


def usual_range(situation: str, *, known_model: bool) -> tuple[float, float]:
    """Return how far below and above the expected figure measured ones lie, as shares of it."""
    found = table("fitted", "plan")["ranges"][situation]["known" if known_model else "other"]
    return 1 - float(found[0]), float(found[1]) - 1
