"""The speed of a served model while it decodes, with and without a drafter.

A step of decoding gives every request a token, and takes as long as reading all it needs. With a
drafter a small model drafts, and the large one verifies all drafts in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Hidden, Rounded, derived
from spark_cluster.errors import UsageError
from spark_cluster.plan.acceptance import gained, kind_of
from spark_cluster.plan.estimate import (
    MEASURED_NODES,
    Constants,
    Estimate,
    Uncertainty,
    correction,
    exchanges,
    family,
    most_exchanges,
    usual_range,
)
from spark_cluster.plan.serving import (
    Reading,
    ServingSetup,
    draft_read,
    least_read,
    weights_read,
)

EAGER = 0.95
"""What is left of the speed without CUDA graphs where reading takes most of the time: 6.88 of 6.93
and 6.24 of 6.91 tokens/s with Gemma 4 31B (source: forum-gemma4-31b-fp8); another article: 0.97."""


DRAFT_EXCHANGES = 4
"""All-reduces for each token that the model's own MTP layer drafts: of its two residual blocks, the
embedding and the output."""

OF_LINK = ("allreduce_us", "allreduce_low_us", "allreduce_high_us", "link", "basis")


@dataclass(frozen=True)
class DecodeStep:
    """The cost of one step on each node, in the units of the constants.

    Attributes:
        read: bytes of weights.
        cache: bytes of the cache, all requests together.
        allreduces: exchanges in which the nodes add up what each has: once for each residual
            block, for the embedding and for the output, also of drafts, each time one of two nodes
            and more of more; none on one node.
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
        """Bytes of BF16 that take as long to read as the chosen experts."""
        few_bits = self.read.experts_4bit / constants.moe4_pace
        return self.read.experts + few_bits + self.read.experts_fp4 / constants.moe_fp4_pace

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
    serving: ServingSetup,
    context: float,
    concurrency: int = 1,
    *,
    sharing: float = 1.0,
    drafted: int = 0,
) -> DecodeStep:
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
    of_drafts = drafted * DRAFT_EXCHANGES if serving.own_head else 0
    return DecodeStep(
        read=weights_read(serving, concurrency * (1 + drafted), sharing),
        cache=concurrency * serving.kv_bytes(context, drafted),
        allreduces=(serving.geometry.blocks + 2 + of_drafts) * exchanges(serving.tp),
        sockets=serving.sockets,
    )


def shortest(
    serving: ServingSetup, context: float, concurrency: int, constants: Constants
) -> float:
    """Return how long a step takes at least, seconds: what cannot be left out, at the full
    bandwidth; requests could all choose the same experts.
    """
    cache = concurrency * serving.kv_bytes(context)
    return (least_read(serving) + cache) / constants.bandwidth


def decode(
    serving: ServingSetup, context: float, concurrency: int = 1, constants: Constants | None = None
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


def known(serving: ServingSetup, constants: Constants, situation: str) -> float | None:
    """Return what is known of the model itself; nothing where the constants are the user's own,
    but for those of the link.
    """
    usual = Constants()
    link = {name: getattr(usual, name) for name in OF_LINK}
    if replace(constants, **link) != usual:
        return None
    return correction(serving, situation)


def step_seconds(serving: ServingSetup, one: DecodeStep, constants: Constants) -> float:
    """Return how long a step is expected to take."""
    least = serving.geometry.layers * constants.eager_layer_ms / 1e3 if serving.eager else 0.0
    pace = EAGER if serving.eager else 1.0
    return max(least, one.seconds(constants) / pace)


def over_switch(
    doubt: Uncertainty, serving: ServingSetup, one: DecodeStep, constants: Constants
) -> None:
    """Widen for all-reduces of more than two nodes: from one exchange at best to a slow ring."""
    nodes = serving.tp
    if nodes <= MEASURED_NODES:
        return
    usual = step_seconds(serving, one, constants)
    each = one.allreduces / exchanges(nodes)
    quickest = replace(constants, allreduce_us=constants.allreduce_low_us)
    slowest = replace(constants, allreduce_us=constants.allreduce_high_us)
    ring = replace(one, allreduces=round(each * most_exchanges(nodes)))
    fast = step_seconds(serving, replace(one, allreduces=round(each)), quickest)
    slow = step_seconds(serving, ring, slowest)
    reason = "all-reduces over a switch, for which nothing is published"
    doubt.more(reason, max(0.0, 1 - usual / slow), max(0.0, usual / fast - 1))


def doubts(serving: ServingSetup, concurrency: int, *, known_model: bool) -> Uncertainty:
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
        doubt.more("--enforce-eager, about which reports disagree", 0.05)
    return doubt


# Speculative decoding.

CONTEXT = 1024
"""Tokens in the cache of a request when nothing is said, as in `plan` and `predict speed`: a prompt
of 512 and half an answer."""


@dataclass(frozen=True)
class Speculative(Document):
    """Tokens/s with a drafter.

    Attributes:
        request: of one request; the roofline is reading once, at the full bandwidth, for the tokens
            that a step gives: all of the drafted ones where the acceptance is not known.
        total: of all requests together.
        tokens_per_step: that one request gets out of a step.
        gain: expected tokens/s over those without a drafter.
        basis: what the figures rest on.
    """

    request: Hidden[Estimate]
    total: Hidden[Estimate]
    tokens_per_step: Annotated[float, Rounded(2)]
    gain: Annotated[float, Rounded(2)]
    basis: Hidden[str]
    decode_tok_s = derived(Estimate, lambda found: found.request.rounded())
    total_tok_s = derived(Estimate, lambda found: found.total.rounded())


def speculative(
    serving: ServingSetup,
    context: float,
    drafted: int,
    acceptance: Sequence[float] = (),
    *,
    concurrency: int = 1,
    constants: Constants | None = None,
    accepted_share: float | None = None,
    method: str = "",
) -> Speculative:
    """Predict how fast it decodes with a drafter.

    A step verifies the drafted tokens with the request's own one, so it reads the experts that all
    of them choose. Each pass of the drafter takes `draft_ms`, and reads `draft_read`: one for each
    drafted token, or one for all of them.

    Args:
        drafted: tokens drafted in a step.
        acceptance: of each position, given the ones before; empty gives a range.
        accepted_share: of all drafts, instead of `acceptance`, as vLLM's metrics report it.
        method: of the drafter, as vLLM calls it; empty: not known.

    Raises:
        UsageError: a count or a rate that cannot be.
    """
    constants = constants or Constants()
    tokens_of_step = gained(drafted, acceptance, accepted_share, kind_of(method))
    usual = known(serving, constants, "drafter")
    verified = step(serving, context, concurrency, sharing=constants.sharing, drafted=drafted)
    is_known = len(set(tokens_of_step)) == 1
    doubt = _drafting_doubts(serving, concurrency, known_model=usual is not None)
    over_switch(doubt, serving, verified, constants)
    if not is_known:
        doubt.why.append("an acceptance that was not measured")
    slower = drafting_seconds(serving, context, drafted, concurrency, constants)
    seconds = slower / (usual or 1.0)
    best = tokens_of_step[0] if is_known else 1 + drafted
    roofline = best / shortest(serving, context, concurrency, constants)
    speeds = [min(tokens / seconds, roofline) for tokens in tokens_of_step]
    ranges = [doubt.around(speed, roofline, constants, serving.tp) for speed in speeds]
    request = Estimate(speeds[0], ranges[1].low, ranges[2].high, roofline)
    basis = doubt.text(constants.basis)
    plain = step(serving, context, concurrency, sharing=constants.sharing)
    gain = tokens_of_step[0] * step_seconds(serving, plain, constants) / slower
    return Speculative(request, request.times(concurrency), tokens_of_step[0], gain, basis)


def _drafting_doubts(serving: ServingSetup, concurrency: int, *, known_model: bool) -> Uncertainty:
    """Return how far off decoding with a drafter may be, as far as the model says it."""
    doubt = doubts(serving, concurrency, known_model=known_model)
    down, up = usual_range("drafter", known_model=known_model)
    doubt.down, doubt.up = max(down, doubt.down), max(up, doubt.up)
    doubt.why.append("drafting")
    return doubt


def drafting_seconds(
    serving: ServingSetup, context: float, drafted: int, concurrency: int, constants: Constants
) -> float:
    """Return how long a step with drafted tokens is expected to take."""
    one = step(serving, context, concurrency, sharing=constants.sharing, drafted=drafted)
    head = draft_read(serving) / (constants.bandwidth * constants.eta_dense)
    passes = min(drafted, 1) if serving.drafts_at_once else drafted
    return step_seconds(serving, one, constants) + passes * (constants.draft_ms / 1e3 + head)


def request_speed(
    recipe: Recipe,
    serving: ServingSetup,
    *,
    context: float = CONTEXT,
    constants: Constants | None = None,
) -> Estimate:
    """Tokens/s of one request that is alone, with the recipe's drafter when it has one."""
    drafter = recipe.drafter
    if drafter is None:
        return decode(serving, context, constants=constants).request
    return speculative(
        serving,
        context,
        drafter.tokens,
        drafter.acceptance,
        constants=constants,
        method=drafter.method,
    ).request
