"""The context at the length that the server states: a fact in a long prompt is found again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_cluster.engine.checks import texts
from spark_cluster.engine.checks.texts import filler
from spark_cluster.engine.client import Check, Client, NotApplicable, RequestFailed
from spark_cluster.node import replies
from spark_cluster.node.bench.completions import ChatCompletion

NEEDLES = ((0.9, "48213"), (0.5, "70956"), (0.1, "35827"))
"""Depth of a fact as a share of the prompt, and its number. The deepest comes first: with a prefix
cache the others need not be computed from the beginning."""

QUESTION = "What is the code of the archive? Reply with the number only"

SAMPLE = 100
"""Sentences by which the tokens of a sentence are counted."""

ANSWER = 1024
"""Tokens that are left for the answer: a model may think first."""

LEAST = 512
"""Tokens of a context below which there is nothing to find a fact in."""

SMALLER = 0.95
"""Factor of the prompt when the server refuses it as too long; the count is an estimate."""

TRIES = 3

CUT = 0.8
"""Least share of the expected tokens that the server must have counted."""

FLAGS = ("max-model-len", "context-length")

HINT = (
    "a rope scaling or sliding window that the model was not made for, an FP8 KV cache, or a "
    "--max-model-len beyond the model's own: a smaller one is honest"
)


@dataclass(frozen=True)
class Size:
    """The size of the prompts, in tokens.

    Attributes:
        stated: context that the server states.
        prompt: length that the prompts are to have.
        answer: tokens that are left for the answer.
    """

    stated: int
    prompt: int
    answer: int


def context(client: Client) -> str:
    """A fact is found at several depths of a prompt as long as the server states."""
    stated = _stated(client)
    length = min(stated, client.context or stated)
    answer = min(ANSWER, length // 4)
    size = Size(stated, length - answer, answer)
    count = _sentences(client, size.prompt)
    seen = 0
    for depth, code in NEEDLES:
        found = _asked(client, size, filler_with(count, code, depth))
        tokens = found.prompt_tokens or 0
        if tokens < CUT * size.prompt:
            raise client.wrong(
                f"context: the server counted {tokens} tokens of a prompt of about {size.prompt}: "
                "it was cut",
                "a proxy or the engine shortens prompts without saying so",
            )
        seen = max(seen, tokens)
        if code not in found.content:
            raise client.wrong(
                f"context: the number at {depth:.0%} of {tokens} tokens is {code}, the model says "
                f"{replies.short(found.content.strip())!r}",
                HINT,
            )
    depths = ", ".join(f"{depth:.0%}" for depth, _ in NEEDLES)
    return f"found at {depths} of {seen} tokens (the server states {stated})"


def _stated(client: Client) -> int:
    """The context length by the server's list of models, else by its launch.

    Raises:
        NotApplicable: neither says it, or it is very short.
    """
    answer = client.endpoint.request(client.session, "/v1/models")
    if answer.status == 0:
        raise client.failed("context: the list of models", answer)
    rows = replies.at(replies.decoded(answer.body), "data")
    own = [row for row in (rows if isinstance(rows, list) else ())
           if replies.at(row, "id") == client.endpoint.model]  # fmt: skip
    stated = replies.at(own, 0, "max_model_len")
    if not isinstance(stated, int) or isinstance(stated, bool):
        given = [value for flag in FLAGS if (value := (client.flags or {}).get(flag, ""))]
        stated = int(given[0]) if given and given[0].isascii() and given[0].isdigit() else 0
    if stated < LEAST:
        what = f"the context has {stated} tokens" if stated else "the server states no context"
        raise NotApplicable(
            f"context: {what}", where=client.where, hint="--max-model-len states it"
        )
    return stated


def _sentences(client: Client, tokens: int) -> int:
    """How many sentences make so many tokens, by the server's own count."""
    used = []
    for count in (1, SAMPLE // 4 if tokens < 20 * SAMPLE else SAMPLE):
        found = client.ask("context", filler(count) + f"\n{QUESTION}", max_tokens=1)
        used.append((count, found.prompt_tokens or 0))
    (few, before), (many, after) = used
    if not 0 < before < after:
        raise client.wrong(
            f"context: the server counted {before} tokens for {few} sentence, {after} for {many}",
            "a proxy that leaves `usage` out answers for the engine",
        )
    each = (after - before) / (many - few)
    return max(1, int((tokens - before) / each * 0.97))


def fact(code: str) -> str:
    """Return the sentence that is to be found again."""
    return f"The code of the archive is {code}."


def filler_with(count: int, code: str, depth: float) -> Callable[[float], str]:
    """Return a prompt with a fact, at a share of its whole length."""
    return lambda share: f"{filler(round(count * share), fact(code), depth)}\n{QUESTION}"


def _asked(client: Client, size: Size, prompt: Callable[[float], str]) -> ChatCompletion:
    """The answer about one fact; with a shorter prompt where the server finds it too long."""
    tried = 1
    while True:
        try:
            return client.ask(
                "context",
                prompt(SMALLER ** (tried - 1)),
                max_tokens=size.answer,
                **texts.without_reasoning(client),
            )
        except RequestFailed as error:
            if error.status == 0:
                raise
            if error.status != 400 or tried == TRIES:
                raise client.wrong(
                    f"context: a prompt of the stated length ({size.stated} tokens) is refused: "
                    f"{error.reason} (status {error.status})",
                    "--max-model-len states more than the server takes, or the KV cache is too "
                    "small for it: spark-cluster logs shows its size",
                ) from error
        tried += 1


CHECKS = (
    Check("context", "context", "context at its stated length", f"{QUESTION} (among filler)",
          "the number, at 10%, 50% and 90% of the prompt", context),
)  # fmt: skip
