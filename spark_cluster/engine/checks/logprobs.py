"""Log-probabilities: finite, and the same at two calls with one prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spark_cluster.engine.client import Check, Client, RequestFailed

TOKENS = 16
"""Tokens of an answer that are compared."""

DRIFT = 0.25
"""Largest difference of one token's log-probability between two calls, in nats: two steps of BF16.

vLLM promises no equal log-probabilities: what else is in the batch changes the order of additions
(https://docs.vllm.ai/en/latest/usage/faq/). BF16 keeps 8 significant bits, so a logit of 16 to 32
has steps of 2**(4 - 7) = 0.125. A log-probability is a logit less the logarithm of a sum: one step
of the logit and as much of the sum are 2 * 0.125 = 0.25. The bound is derived, not measured on a
Spark; a divergence that a test of vLLM printed is 0.067
(https://github.com/vllm-project/vllm/pull/32480)."""

TIE = 2 * DRIFT
"""Largest difference of the chosen tokens' log-probabilities where the two calls chose different
tokens, in nats. Each token may move by DRIFT, so two that are up to 2 * DRIFT apart may change
places. For a greedy choice the two chosen values then differ by at most DRIFT; the remainder is a
margin for logits above 32, whose steps are 0.25."""

PROMPT = "Name the seven days of the week in their order, separated by commas."

HINT = (
    "kernels whose results change from call to call, or memory that is overwritten: try "
    "--enforce-eager, another --attention-backend, or without the drafter"
)

Tokens = Sequence[tuple[str, float]]


def logprobs(client: Client) -> str:
    """Two calls with one prompt give the same tokens with the same log-probabilities."""
    one, other = _asked(client), _asked(client)
    for token, value in (*one, *other):
        if not (math.isfinite(value) and value <= 0.01):
            shown = "no finite number" if not math.isfinite(value) else f"{value:.3g}"
            raise client.wrong(
                f"logprobs: the log-probability of {token!r} is {shown}, expected at most 0", HINT
            )
    if why := unstable(one, other):
        raise client.wrong(f"logprobs: {why}", HINT)
    drift = max((abs(a[1] - b[1]) for a, b in zip(one, other, strict=False) if a[0] == b[0]))
    return f"{len(one)} tokens, largest difference {drift:.3f}"


def unstable(one: Tokens, other: Tokens) -> str:
    """Return why two calls do not agree; empty when they do."""
    for place, (first, second) in enumerate(zip(one, other, strict=False), 1):
        apart = abs(first[1] - second[1])
        if first[0] != second[0]:
            if place > 1 and apart <= TIE:
                return ""  # what follows the other token is another text
            return (
                f"token {place} is {first[0]!r} ({first[1]:.3f}) at the first call and "
                f"{second[0]!r} ({second[1]:.3f}) at the second"
            )
        if apart > DRIFT:
            return (
                f"token {place} ({first[0]!r}) has {first[1]:.3f} at the first call and "
                f"{second[1]:.3f} at the second, expected at most {DRIFT} apart"
            )
    if len(one) != len(other):
        return f"the first call has {len(one)} tokens, the second {len(other)}"
    return ""


def _asked(client: Client) -> Tokens:
    try:
        found = client.ask("logprobs", PROMPT, max_tokens=TOKENS, logprobs=True, top_logprobs=1)
    except RequestFailed as error:
        hint = "--max-logprobs, or the drafter, keeps the server from giving them"
        raise error.judged(("logprob",), hint) from None
    if not found.tokens:
        raise client.wrong(
            "logprobs: the reply has none, though they were asked for",
            "a proxy that leaves fields out answers for the engine",
        )
    return found.tokens


CHECKS = (
    Check("logprobs", "logprobs", "log-probabilities, two calls", PROMPT,
          f"the same tokens, at most {DRIFT} apart", logprobs),
)  # fmt: skip
