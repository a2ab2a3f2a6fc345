"""Decoding: one step gives every request a token, and takes as long as reading all it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_cluster.errors import UsageError
from spark_cluster.models.weights import step_bytes
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.estimate import Estimate, Uncertainty, family
from spark_cluster.planning.speed.serving import Serving

ERROR = 0.06
"""Largest error on the published points with one request on one Spark."""

EAGER = 0.95
"""What is left of the speed without CUDA graphs where reading takes most of the time: 6.88 of 6.93
and 6.24 of 6.91 tokens/s with Gemma 4 31B (source: forum-gemma4-31b-fp8); another article: 0.97."""


@dataclass(frozen=True)
class Step:
    """The cost of one step, in the units of the constants.

    Attributes:
        weights: bytes of weights a node reads.
        cache: bytes of the cache a node reads, all requests together.
        layers: layers.
        allreduces: how often the nodes add up what each has: twice a layer, once for the embedding
            and once for the output; none on one node.
    """

    weights: float
    cache: float
    layers: int
    allreduces: int

    def seconds(self, moe: bool, constants: Constants) -> float:
        """Return how long it takes."""
        eta = constants.eta_moe if moe else constants.eta_dense
        return (
            self.weights / (constants.bandwidth * eta)
            + self.cache / (constants.bandwidth * constants.eta_kv)
            + self.layers * constants.layer_ms / 1e3
            + self.allreduces * constants.allreduce_us / 1e6
        )

    def shortest(self, constants: Constants) -> float:
        """Return how long reading alone takes at the full bandwidth, seconds."""
        return (self.weights + self.cache) / constants.bandwidth


@dataclass(frozen=True)
class Decode:
    """Tokens/s.

    Attributes:
        request: of one request.
        total: of all requests together.
        bytes_per_token: that all nodes read together for one token of one request.
        basis: what the figures rest on.
    """

    request: Estimate
    total: Estimate
    bytes_per_token: float
    basis: str


def step(serving: Serving, context: float, concurrency: int = 1) -> Step:
    """Compute what one step reads.

    Args:
        context: tokens in the cache of each request.
        concurrency: requests in the step, a token each.

    Raises:
        UsageError: a count that cannot be.
    """
    if context < 0 or concurrency < 1:
        raise UsageError(
            f"found context {context:g} and concurrency {concurrency}, expected at least 0 and 1"
        )
    geometry = serving.geometry
    return Step(
        weights=step_bytes(geometry, serving.quantization, concurrency) / serving.tp,
        cache=concurrency * serving.kv_bytes(context),
        layers=geometry.layers,
        allreduces=2 * geometry.layers + 2 if serving.tp > 1 else 0,
    )


def decode(
    serving: Serving, context: float, concurrency: int = 1, constants: Constants | None = None
) -> Decode:
    """Predict how fast it decodes.

    Args:
        context: tokens in the cache of each request, in the middle of its answer.
        concurrency: requests at a time, all of them decoding.

    Raises:
        UsageError: a count that cannot be.
    """
    constants = constants or Constants()
    one = step(serving, context, concurrency)
    fast, expected, slow = step_seconds(serving, one, constants)
    doubt = doubts(serving, concurrency)
    roofline = 1 / one.shortest(constants)
    request = Estimate(
        expected=1 / expected,
        low=(1 - doubt.down) / slow,
        high=min((1 + doubt.up) / fast, roofline),
        roofline=roofline,
    )
    read = serving.tp * (one.weights + one.cache) / concurrency
    return Decode(request, request.times(concurrency), read, doubt.text(constants.basis))


def step_seconds(serving: Serving, one: Step, constants: Constants) -> tuple[float, float, float]:
    """Return how long a step takes: with the fastest all-reduce seen, as expected, and with the
    slowest.
    """
    usual = constants.allreduce_us
    quick, slow = min(usual, constants.allreduce_low_us), max(usual, constants.allreduce_high_us)
    moe = serving.geometry.is_moe
    least = one.layers * constants.eager_layer_ms / 1e3 if serving.eager else 0.0
    pace = EAGER if serving.eager else 1.0
    return (
        max(least, one.seconds(moe, replace(constants, allreduce_us=quick)) / pace),
        max(least, one.seconds(moe, constants) / pace),
        max(least, one.seconds(moe, replace(constants, allreduce_us=slow)) / pace),
    )


def doubts(serving: Serving, concurrency: int) -> Uncertainty:
    """Return how far off it may be.

    With several requests the published runs are up to 15 % slower, as prefills come between; with
    experts up to 40 % faster, as requests alike in content share experts (topology benchmark of
    Gemma 4 26B FP8 on two DGX Sparks, April 2026: 100, 152 and 211 tokens/s at 4, 8 and 16).
    """
    doubt = Uncertainty(ERROR, ERROR)
    family(serving, doubt)
    if concurrency > 1 and serving.geometry.is_moe:
        doubt.more("requests that may share experts", 0.09, 0.34)
    elif concurrency > 1:
        doubt.more("prefills that come between", 0.09, 0.02)
    if serving.eager:
        doubt.more("--enforce-eager", 0.05)
    return doubt
