"""Prefill: the prompt's way through the model, which ends with the first response."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.errors import UsageError
from spark_cluster.models.weights import LINEAR, formats, parameters, step_bytes
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.decode import step
from spark_cluster.planning.speed.estimate import Estimate, Uncertainty, family
from spark_cluster.planning.speed.serving import Serving

ERROR = 0.07
"""Largest error on the published prefills."""

PEAK_FLOPS = 250e12
"""FP8 without sparsity (a quarter of the 1,000 that the data sheet of GB10 gives for sparse
FP4)."""

_FAST = frozenset({"fp8", "fp8-online", "nvfp4"})
"""Quantizations whose products are computed as such; the others are unpacked to BF16."""


@dataclass(frozen=True)
class Work:
    """The cost of a prefill.

    Attributes:
        fast: operations of matrix products in FP8 or FP4; with experts all are here.
        slow: operations of those in BF16.
        attention: operations that grow with the square of the prompt.
        exchanged: bytes that the nodes exchange.
        tp: over how many nodes the operations are divided.
    """

    fast: float
    slow: float
    attention: float
    exchanged: float
    tp: int

    def seconds(self, moe: bool, constants: Constants) -> float:
        """Return how long it takes."""
        fast = constants.prefill_moe_tflops if moe else constants.prefill_tflops
        products = self.fast / fast + self.slow / constants.prefill_bf16_tflops
        attention = self.attention / constants.attention_tflops
        exchange = self.exchanged / constants.link
        return (products + attention) / 1e12 / self.tp + exchange + constants.prefill_ms / 1e3


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


def work(serving: Serving, prompt: int, cached: int = 0) -> Work:
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
    counts, lies = parameters(geometry), formats(geometry, serving.quantization)
    fast = slow = 0.0
    for name in LINEAR:
        count = float(getattr(counts, name))
        if name == "experts" and geometry.experts:
            count *= geometry.experts.top_k / geometry.experts.count
        if geometry.is_moe or lies[name] in _FAST:
            fast += 2 * count * prompt
        else:
            slow += 2 * count * prompt
    pairs = (prompt + cached) ** 2 - cached**2
    per_pair = sum(
        part.layers * part.q_heads * (part.head_dim + part.value_dim)
        for part in geometry.attention
        if part.kind == "full"
    )
    latent = geometry.latent
    if latent:
        width = latent.nope_dim + latent.rope_dim + latent.value_dim
        per_pair += latent.layers * latent.q_heads * width
    exchanged = 0.0
    if serving.tp > 1:
        exchanged = (2 * geometry.layers + 1) * prompt * geometry.hidden * 2.0
    return Work(fast, slow, float(per_pair) * pairs, exchanged, serving.tp)


def expected_seconds(serving: Serving, prompt: int, cached: int, constants: Constants) -> float:
    """Return the time to the first response, s; no shorter than a step that reads every weight that
    the prompt needs, or than one over what is cached.
    """
    moe = serving.geometry.is_moe
    weights = step_bytes(serving.geometry, serving.quantization, prompt) / serving.tp
    eta = constants.eta_moe if moe else constants.eta_dense
    return max(
        work(serving, prompt, cached).seconds(moe, constants),
        weights / (constants.bandwidth * eta),
        step(serving, cached).seconds(moe, constants),
    )


def _doubts(serving: Serving, *, read_bound: bool) -> Uncertainty:
    """Return how far off it may be.

    Published prefills of 128 tokens, which take as long as reading the weights, took half as long
    again (229 ms for 146); without CUDA graphs they are 4 to 18 % slower (source:
    forum-gemma4-31b-fp8).
    """
    doubt = Uncertainty(ERROR, ERROR)
    family(serving, doubt)
    if serving.geometry.is_moe:
        doubt.more("experts, with which no prefill was fitted", 0.30)
    elif serving.quantization not in ("fp8", "fp8-online"):
        doubt.more("its weights, as only prefills in FP8 were fitted", 0.30)
    if read_bound:
        doubt.more("so short a prompt", 0.33, 0.0)
    if serving.eager:
        doubt.more("--enforce-eager", 0.15, 0.0)
    return doubt


def prefill(
    serving: Serving, prompt: int, cached: int = 0, constants: Constants | None = None
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
    moe, todo = serving.geometry.is_moe, work(serving, prompt, cached)
    expected = expected_seconds(serving, prompt, cached, constants)
    doubt = _doubts(serving, read_bound=expected > todo.seconds(moe, constants))
    arithmetic = (todo.fast + todo.slow + todo.attention) / PEAK_FLOPS / serving.tp
    weights = step_bytes(serving.geometry, serving.quantization, prompt) / serving.tp
    best = max(arithmetic, weights / constants.bandwidth)
    fastest, slowest = expected / (1 + doubt.up), expected / (1 - doubt.down)
    seconds = Estimate(expected, max(fastest, best), slowest, best)
    rate = Estimate(*(prompt / s for s in (expected, seconds.high, seconds.low, best)))
    return Prefill(seconds, rate, doubt.text(constants.basis))
