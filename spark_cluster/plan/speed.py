"""The speed of a served model: decoding, decoding with a drafter, and prefill.

A step of decoding gives every request a token, and takes as long as reading all it needs. With a
drafter a small model drafts, and the large one verifies all drafts in one step. Prefill is the
prompt's way through the model, which ends with the first response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Hidden, Rounded, derived
from spark_cluster.errors import UsageError
from spark_cluster.models.shape import MATRICES, Geometry
from spark_cluster.plan.acceptance import gained, kind_of
from spark_cluster.plan.estimate import (
    MEASURED_NODES,
    Constants,
    Estimate,
    Uncertainty,
    carried,
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
    of them choose, and takes `draft_ms` more for each drafted token; where the model's own head
    drafts, also the time of reading that and the output layer.

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
    return step_seconds(serving, one, constants) + drafted * (constants.draft_ms / 1e3 + head)


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


# Prefill.

PEAK_FLOPS = 250e12
"""FP8 without sparsity (a quarter of the 1,000 that the data sheet of GB10 gives for sparse
FP4)."""

BIG_HEAD = 256
"""Larger heads than this no flash attention kernel of the chip takes (vLLM 40677)."""


@dataclass(frozen=True)
class PrefillWork:
    """The cost of a prefill, all nodes together unless said otherwise.

    Attributes:
        fast: operations of matrix products in FP8 or FP4.
        slow: the same in BF16.
        unpacked, unpacked_fp8: the same where weights of 4 bits, or in FP8, are unpacked to BF16
            first.
        experts: the same of experts, in any format but the next.
        experts_fp4: the same of experts that are multiplied in FP4.
        attention: operations that grow with the square of the prompt, with heads above 256.
        flash: the same with smaller heads.
        scan: operations of recurrent layers on their states.
        activations: bytes between the products, written or read once: hidden states, and what
            recurrent layers work on.
        routed: bytes that go to experts and come back: each of a token's experts has its own copy
            of the input, of what is between its matrices and of the output, written and read once.
        read: bytes of experts that a node reads, once for each chunk of the prompt.
        dense_read: the same of other weights, which are read while products are computed.
        exchanged: bytes that the nodes exchange.
        tp: over how many nodes the operations are divided.
    """

    fast: float
    slow: float
    unpacked: float
    unpacked_fp8: float
    experts: float
    experts_fp4: float
    attention: float
    flash: float
    scan: float
    activations: float
    routed: float
    read: float
    dense_read: float
    exchanged: float
    tp: int

    @property
    def operations(self) -> float:
        """All of them."""
        products = self.fast + self.slow + self.unpacked + self.unpacked_fp8
        return products + self.experts + self.experts_fp4 + self.attention + self.flash

    def is_read_bound(self, constants: Constants) -> bool:
        """Return whether reading the weights takes longer than computing with them."""
        return self._dense_read(constants) > self._dense(constants)

    def _dense(self, constants: Constants) -> float:
        """Products of weights other than experts, s."""
        tera = (
            self.fast / constants.prefill_tflops
            + self.slow / constants.prefill_bf16_tflops
            + self.unpacked / constants.prefill_unpacked_tflops
            + self.unpacked_fp8 / constants.prefill_unpacked_fp8_tflops
        )
        return tera / 1e12 / self.tp

    def _dense_read(self, constants: Constants) -> float:
        return self.dense_read / (constants.bandwidth * constants.eta_dense)

    def reads_experts(self, constants: Constants) -> bool:
        """Return whether experts are waited for longer than computed with: as with the others, one
        overlaps the other.
        """
        return self._experts_read(constants) > self._experts(constants)

    def _experts(self, constants: Constants) -> float:
        """Products of experts, s."""
        tera = (
            self.experts / constants.prefill_moe_tflops
            + self.experts_fp4 / constants.prefill_moe_fp4_tflops
        )
        return tera / 1e12 / self.tp

    def _experts_read(self, constants: Constants) -> float:
        return self.read * constants.prefill_read / constants.bandwidth

    def seconds(self, constants: Constants) -> float:
        """Return how long it takes."""
        tera = (
            self.attention / constants.attention_tflops
            + self.flash / constants.flash_tflops
            + self.scan / constants.scan_tflops
        )
        passed = self.activations * constants.activation_passes + self.routed
        products = max(self._dense(constants), self._dense_read(constants))
        products += max(self._experts(constants), self._experts_read(constants))
        divided = (tera / 1e12 + passed / constants.bandwidth) / self.tp
        exchange = self.exchanged / constants.link
        return products + divided + exchange + constants.prefill_ms / 1e3


@dataclass(frozen=True)
class Prefill:
    """A request's prefill when no other is served.

    Attributes:
        seconds: to the first response (TTFR), s; `low` is the fastest, and `roofline` what the
            chip's arithmetic or its memory allows at best.
        tokens_s: of the prompt that are new, tokens/s.
        basis: what the figures rest on.
    """

    seconds: Estimate
    tokens_s: Estimate
    basis: str


def work(serving: ServingSetup, prompt: int, cached: int = 0) -> PrefillWork:
    """Compute what a prefill costs.

    Args:
        prompt: its new tokens.
        cached: tokens before them that are in the cache.

    Raises:
        UsageError: a count that cannot be.
    """
    if prompt < 1 or cached < 0:
        raise UsageError(f"found prompt {prompt} and cached {cached}, expected at least 1 and 0")
    geometry = serving.geometry
    products = _products(serving, prompt)
    pairs = (prompt + cached) ** 2 - cached**2
    big, small = _per_pair(serving)
    exchanged = 0.0
    if serving.tp > 1:
        added_up = (geometry.blocks + 1) * prompt * geometry.hidden * 2.0
        exchanged = added_up * carried(serving.tp)
    chunks, rest = divmod(prompt, serving.batched_tokens)
    whole, last = (weights_read(serving, tokens) for tokens in (serving.batched_tokens, rest))
    dense = last.dense + last.dense_fp4
    return PrefillWork(
        **products,
        attention=float(big) * pairs,
        flash=float(small) * pairs,
        scan=prompt * _scan(geometry),
        activations=2.0 * prompt * _activations(geometry),
        routed=4.0 * prompt * _routed(geometry),
        read=chunks * whole.all_experts + last.all_experts,
        dense_read=(chunks + (rest > 0)) * dense,
        exchanged=exchanged,
        tp=serving.tp,
    )


def _products(serving: ServingSetup, prompt: int) -> dict[str, float]:
    """Operations of matrix products, by the field of `PrefillWork`."""
    chosen = serving.geometry.experts
    found = dict.fromkeys(
        ("fast", "slow", "unpacked", "unpacked_fp8", "experts", "experts_fp4"), 0.0
    )
    for name in MATRICES:
        part = serving.weights.part(name)
        share = chosen.top_k / chosen.count if chosen and name == "experts" else 1.0
        kind = _kind(part.format, unpacked=serving.unpacks(part.format))
        if name == "experts":
            kind = "experts_fp4" if serving.multiplies_fp4(part.format) else "experts"
        found[kind] += 2 * part.parameters * prompt * share
    return found


def _kind(form: str, *, unpacked: bool) -> str:
    """Name the kind of product that weights in a format make."""
    if form == "bf16":
        return "slow"
    if form in NATIVE and not unpacked:
        return "fast"
    return "unpacked_fp8" if form.startswith("fp8") else "unpacked"


SCAN = {"gdn": 11.0, "mamba2": 8.0, "mamba": 6.0, "conv": 0.0}
"""Operations of a recurrent layer for each token and element of its state. GDN in chunks of C
tokens with heads of d: 6 d^2 for the state and 10 C d within the chunk, which is 11 d^2 at C = 64
and d = 128; Mamba 2: 4 for the state and as much again within the chunk; Mamba: one step after the
other. Counted from the chunked algorithms, which vLLM runs in Triton."""


def _scan(geometry: Geometry) -> float:
    """Operations of recurrent layers on their states, for one token."""
    return sum(SCAN[p.kind] * p.layers * p.state_elements for p in geometry.recurrent)


def _routed(geometry: Geometry) -> float:
    """Elements that go to experts and come back, for one token: input and output of each of its
    experts, and three times the width between its matrices (gate, up, their product).
    """
    experts = geometry.experts
    if experts is None:
        return 0.0
    width = experts.latent or geometry.hidden
    return experts.layers * experts.top_k * (2.0 * width + 3.0 * experts.intermediate)


def _activations(geometry: Geometry) -> float:
    """Elements between the products of all layers for one token."""
    recurrent = sum(p.layers * p.conv_elements / max(p.conv_width, 1) for p in geometry.recurrent)
    return geometry.blocks * geometry.hidden / 2.0 + recurrent


NATIVE = ("fp8", "fp8-online", "nvfp4")
"""Formats whose products the chip computes as such; the others are unpacked to BF16."""


def _per_pair(serving: ServingSetup) -> tuple[float, float]:
    """Operations for a pair of tokens: with heads above 256, and with smaller ones."""
    big = small = 0.0
    for part in serving.geometry.attention:
        if part.kind == "full":
            each = part.layers * part.q_heads * (part.head_dim + part.value_dim)
            if part.head_dim > BIG_HEAD:
                big += each
            else:
                small += each
    latent = serving.geometry.latent
    if latent:
        width = latent.nope_dim + latent.rope_dim + latent.value_dim
        small += latent.layers * latent.q_heads * width
    return big, small


def expected_seconds(
    serving: ServingSetup, prompt: int, cached: int, constants: Constants
) -> float:
    """Return the time to the first response, s; no shorter than a step over what is cached."""
    return max(
        work(serving, prompt, cached).seconds(constants),
        step(serving, cached).seconds(constants),
    )


def _doubts(serving: ServingSetup, prompt: int, *, known_model: bool) -> Uncertainty:
    """Return how far off it may be.

    Without CUDA graphs prefills are 4 to 18 % slower (source: forum-gemma4-31b-fp8), and so are
    short ones, of which few were measured.
    """
    doubt = Uncertainty(*usual_range("prefill", known_model=known_model))
    if not known_model:
        doubt.why.append("a model whose prefill was not measured")
    family(serving, doubt)
    if prompt < SHORT:
        doubt.more("so short a prompt", 0.25)
    if serving.eager:
        doubt.more("--enforce-eager", 0.15, 0.0)
    return doubt


SHORT = 1024
"""Tokens of a prompt below which no fitted run is."""


def prefill(
    serving: ServingSetup, prompt: int, cached: int = 0, constants: Constants | None = None
) -> Prefill:
    """Predict the time to the first response.

    Attention within a window grows with the prompt only, and is part of what was fitted for the
    products.

    Args:
        prompt: new tokens of the prompt, as the server counts them.
        cached: tokens before them that are in the cache (prefix caching).

    Raises:
        UsageError: a count that cannot be.
    """
    constants = constants or Constants()
    todo = work(serving, prompt, cached)
    usual = known(serving, constants, "prefill")
    doubt = _doubts(serving, prompt, known_model=usual is not None)
    best = max(
        todo.operations / PEAK_FLOPS / serving.tp,
        least_read(serving) / constants.bandwidth,
    )
    expected = max(expected_seconds(serving, prompt, cached, constants) / (usual or 1.0), best)
    fastest, slowest = expected / (1 + doubt.up), expected / (1 - doubt.down)
    seconds = Estimate(expected, max(fastest, best), slowest, best)
    rate = Estimate(*(prompt / s for s in (expected, seconds.high, seconds.low, best)))
    return Prefill(seconds, rate, doubt.text(constants.basis))
