"""A chat completion, whole or streamed, read as foreign input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.node.replies import (
    MessageParts,
    NotACompletion,
    at,
    decoded,
    message,
    text_of,
)


@dataclass(frozen=True)
class Completion:
    """An answer of the model.

    Attributes:
        calls: of tools, each with `id`, `type` and `function`, as the next request repeats them.
        models: the names that the reply gives for the model; one, unless replies were mixed up.
        finish: why it ended (`stop`, `length`, `tool_calls`); empty when the server does not say.
        tokens: the chosen tokens with their log-probabilities, where they were asked for.
        prompt_tokens: None when the server does not say.
        ended: a stream came to its own end.
        error: that came inside of a stream.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    models: frozenset[str] = frozenset()
    finish: str = ""
    tokens: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int | None = None
    ended: bool = True
    error: str = ""

    @property
    def text(self) -> str:
        """The reasoning, if any, and the answer."""
        return f"{self.reasoning}\n{self.content}".strip()

    @property
    def as_message(self) -> dict[str, Any]:
        """Return it as the next request of a conversation repeats it."""
        base = {"role": "assistant", "content": self.content}
        return {**base, "tool_calls": list(self.calls)} if self.calls else base


def whole(body: str) -> Completion:
    """Read a reply that is not streamed.

    Raises:
        NotACompletion: it is none.
    """
    found = message(body)
    document = decoded(body)
    choice = at(document, "choices", 0)
    parts = MessageParts()
    parts.add(found)
    used = at(document, "usage", "prompt_tokens")
    return Completion(
        parts.content,
        parts.reasoning,
        tuple(parts.calls),
        frozenset({text_of(at(document, "model"))}),
        text_of(at(choice, "finish_reason")),
        tuple(_tokens(choice)),
        used if isinstance(used, int) else None,
    )


def streamed(body: str) -> Completion:
    """Put a stream of server-sent events together.

    Raises:
        NotACompletion: there is no event in it.
    """
    parts = MessageParts()
    models, finish, ended, error, events = set(), "", False, "", 0
    for line in body.splitlines():
        text = line.strip().removeprefix("data:").strip()
        ended = ended or text == "[DONE]"
        event = decoded(text)
        if not isinstance(event, dict):
            continue
        error = error or text_of(at(event, "error", "message"))
        events += bool(error)
        if isinstance(event.get("model"), str):
            models.add(event["model"])
        delta = at(event, "choices", 0, "delta")
        if isinstance(delta, dict):
            events += 1
            parts.add(delta)
            finish = text_of(at(event, "choices", 0, "finish_reason")) or finish
    if not events:
        raise NotACompletion(body)
    return Completion(
        parts.content,
        parts.reasoning,
        tuple(parts.calls),
        frozenset(models),
        finish,
        ended=ended,
        error=error,
    )


def _tokens(choice: Any) -> Iterator[tuple[str, float]]:
    """Yield tokens and log-probabilities; one that is no finite number comes as NaN."""
    rows = at(choice, "logprobs", "content")
    for row in rows if isinstance(rows, list) else ():
        value = at(row, "logprob")
        usual = isinstance(value, int | float) and not isinstance(value, bool)
        yield text_of(at(row, "token")), float(value) if usual and abs(value) < 1e30 else math.nan
