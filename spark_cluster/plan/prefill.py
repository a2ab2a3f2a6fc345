"""The speed of a prefill: a prompt's way through the model, which ends with the first response."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.errors import UsageError
from spark_cluster.models.shape import MATRICES, Geometry
from spark_cluster.plan.estimate import (
    Constants,
    Estimate,
    Uncertainty,
    carried,
    family,
    usual_range,
)
from spark_cluster.plan.serving import ServingSetup, least_read, weights_read
from spark_cluster.plan.speed import known, step

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


SCAN = {"gdn": 11.0, "kda": 7.75, "mamba2": 8.0, "mamba": 6.0, "conv": 0.0}
"""Operations of a recurrent layer for each token and element of its state, counted from chunked
algorithms: for the state and within a chunk of C = 64 tokens, heads of d = 128: GDN 6 d^2 and
10 C d; KDA 6 d^2 and 3 C d + C^2 (source: kimi-linear); Mamba 2 four of each; Mamba one by one."""


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
    """Operations for a pair of tokens: with heads above 256, and with smaller ones.

    Prefills of MLA pad values to the width of keys, and unpack the keys and values of what is
    cached again for every chunk of the prompt (`mla_attention.py`).
    """
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
        width = 2.0 * (latent.nope_dim + latent.rope_dim)
        width += latent.rank * (latent.nope_dim + latent.value_dim) / serving.batched_tokens
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
