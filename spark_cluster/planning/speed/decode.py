"""Decoding: one step gives every request a token, and takes as long as reading all it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_cluster.errors import UsageError
from spark_cluster.planning.speed import allreduce
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.estimate import (
    Estimate,
    Uncertainty,
    correction,
    family,
    usual_range,
)
from spark_cluster.planning.speed.serving import Reading, Serving, least_read, weights_read

EAGER = 0.95
"""What is left of the speed without CUDA graphs where reading takes most of the time: 6.88 of 6.93
and 6.24 of 6.91 tokens/s with Gemma 4 31B (source: forum-gemma4-31b-fp8); another article: 0.97."""


OF_LINK = ("allreduce_us", "allreduce_low_us", "allreduce_high_us", "link", "basis")


@dataclass(frozen=True)
class Step:
    """The cost of one step on each node, in the units of the constants.

    Attributes:
        read: bytes of weights.
        cache: bytes of the cache, all requests together.
        allreduces: exchanges in which the nodes add up what each has: twice a layer, once for the
            embedding and once for the output, each time one of two nodes and more of more; none on
            one node.
        sockets: they do it over TCP.
    """

    read: Reading
    cache: float
    allreduces: int
    sockets: bool = False

    def dense(self, constants: Constants) -> float:
        """Bytes of BF16 that take as long to read as the matrices that every token passes."""
        return self.read.dense + self.read.dense_fp4 / constants.fp4_pace

    def experts(self, constants: Constants) -> float:
        """The same of the experts."""
        return self.read.experts + self.read.experts_4bit / constants.moe4_pace

    def seconds(self, constants: Constants) -> float:
        """Return how long it takes."""
        each = constants.allreduce_socket_us if self.sockets else constants.allreduce_us
        return (
            self.dense(constants) / (constants.bandwidth * constants.eta_dense)
            + self.experts(constants) / (constants.bandwidth * constants.eta_moe)
            + self.cache / (constants.bandwidth * constants.eta_kv)
            + constants.step_ms / 1e3
            + self.allreduces * each / 1e6
        )


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


def step(
    serving: Serving,
    context: float,
    concurrency: int = 1,
    *,
    sharing: float = 1.0,
    drafted: int = 0,
) -> Step:
    """Compute what one step reads.

    Args:
        context: tokens in the cache of each request.
        concurrency: requests in the step.
        sharing: tokens to this power choose their experts independently.
        drafted: tokens of each request that are verified next to its own one.

    Raises:
        UsageError: a count that cannot be.
    """
    if context < 0 or concurrency < 1:
        raise UsageError(
            f"found context {context:g} and concurrency {concurrency}, expected at least 0 and 1"
        )
    return Step(
        read=weights_read(serving, concurrency * (1 + drafted), sharing),
        cache=concurrency * serving.kv_bytes(context),
        allreduces=(2 * serving.geometry.layers + 2) * allreduce.exchanges(serving.tp),
        sockets=serving.sockets,
    )


def shortest(serving: Serving, context: float, concurrency: int, constants: Constants) -> float:
    """Return how long a step takes at least, seconds: what cannot be left out, at the full
    bandwidth; requests could all choose the same experts.
    """
    cache = concurrency * serving.kv_bytes(context)
    return (least_read(serving) + cache) / constants.bandwidth


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
    one = step(serving, context, concurrency, sharing=constants.sharing)
    usual = known(serving, constants, "tp" if serving.tp > 1 else "decode")
    seconds = step_seconds(serving, one, constants) / (usual or 1.0)
    doubt = doubts(serving, concurrency, known_model=usual is not None)
    over_switch(doubt, serving, one, constants)
    best = 1 / shortest(serving, context, concurrency, constants)
    request = doubt.around(min(1 / seconds, best), best, constants, serving.tp)
    if serving.eager:
        faster = (usual or 1.0) / step_seconds(replace(serving, eager=False), one, constants)
        request = replace(request, high=min(max(request.high, faster), best))
    read = serving.tp * (one.read.total + one.cache) / concurrency
    return Decode(request, request.times(concurrency), read, doubt.text(constants.basis))


def known(serving: Serving, constants: Constants, situation: str) -> float | None:
    """Return what is known of the model itself; nothing where the constants are the user's own,
    but for those of the link.
    """
    usual = Constants()
    link = {name: getattr(usual, name) for name in OF_LINK}
    if replace(constants, **link) != usual:
        return None
    return correction(serving, situation)


def step_seconds(serving: Serving, one: Step, constants: Constants) -> float:
    """Return how long a step is expected to take."""
    least = serving.geometry.layers * constants.eager_layer_ms / 1e3 if serving.eager else 0.0
    pace = EAGER if serving.eager else 1.0
    return max(least, one.seconds(constants) / pace)


def over_switch(doubt: Uncertainty, serving: Serving, one: Step, constants: Constants) -> None:
    """Widen for all-reduces of more than two nodes: from one exchange at best to a slow ring."""
    nodes = serving.tp
    if nodes <= allreduce.MEASURED:
        return
    usual = step_seconds(serving, one, constants)
    each = one.allreduces / allreduce.exchanges(nodes)
    quickest = replace(constants, allreduce_us=constants.allreduce_low_us)
    slowest = replace(constants, allreduce_us=constants.allreduce_high_us)
    ring = replace(one, allreduces=round(each * allreduce.most_exchanges(nodes)))
    fast = step_seconds(serving, replace(one, allreduces=round(each)), quickest)
    slow = step_seconds(serving, ring, slowest)
    reason = "all-reduces over a switch, of which none is published"
    doubt.more(reason, max(0.0, 1 - usual / slow), max(0.0, usual / fast - 1))


def doubts(serving: Serving, concurrency: int, *, known_model: bool) -> Uncertainty:
    """Return how far off it may be."""
    situation = "decode" if concurrency == 1 else "users"
    if serving.tp > 1:
        situation = "tp" if concurrency == 1 else "tp users"
    doubt = Uncertainty(*usual_range(situation, known_model=known_model))
    if not known_model:
        doubt.why.append("a model that was not measured")
    if concurrency > 1:
        shared = "requests that may share experts" if serving.geometry.is_moe else "several users"
        doubt.why.append(shared)
    if serving.tp > 1:
        doubt.why.append("several nodes")
    family(serving, doubt)
    if serving.eager:
        doubt.more("--enforce-eager, of which reports contradict each other", 0.05)
    return doubt
