"""A completion, whole or streamed, read as foreign input: by `verify`, and by the program `ask`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.node.replies import (
    NotACompletion,
    at,
    decoded,
    message,
    reasoning,
    short,
    text_of,
)

MOST_CALLS = 64
"""Tool calls of one answer that are read."""


@dataclass
class MessageParts:
    """A message that is put together from its parts: one, or the deltas of a stream."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, part: dict[str, Any]) -> None:
        """Add a part; what is not as it should be in it is left out."""
        self.content += text_of(part.get("content"))
        self.reasoning += reasoning(part)
        found = part.get("tool_calls")
        for place, call in enumerate(found if isinstance(found, list) else ()):
            if isinstance(call, dict):
                self._call(call, place)

    def _call(self, part: dict[str, Any], place: int) -> None:
        index = part.get("index")
        number = index if isinstance(index, int) and 0 <= index < MOST_CALLS else place
        while len(self.calls) <= min(number, MOST_CALLS - 1):
            function = {"name": "", "arguments": ""}
            made = {"id": f"call-{len(self.calls)}", "type": "function", "function": function}
            self.calls.append(made)
        call = self.calls[min(number, MOST_CALLS - 1)]
        call["id"] = text_of(part.get("id")) or call["id"]
        for name in ("name", "arguments"):
            call["function"][name] += text_of(at(part, "function", name))


@dataclass(frozen=True)
class ChatCompletion:
    """An answer of the model.

    Attributes:
        calls: of tools, each with `id`, `type` and `function`, as the next request repeats them.
        models: the names that the reply gives for the model; one, unless replies were mixed up.
        finish: why it ended (`stop`, `length`, `tool_calls`); empty when the server does not say.
        tokens: the chosen tokens with their log-probabilities, where they were asked for.
        usage: tokens, as the server counts them; empty when it does not say.
        ended: a stream came to its own end.
        error: that came inside of a stream.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    models: frozenset[str] = frozenset()
    finish: str = ""
    tokens: tuple[tuple[str, float], ...] = ()
    usage: Mapping[str, Any] = field(default_factory=dict)
    ended: bool = True
    error: str = ""

    @property
    def text(self) -> str:
        """The reasoning, if any, and the answer."""
        return f"{self.reasoning}\n{self.content}".strip()

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None when the server does not say."""
        used = self.usage.get("prompt_tokens")
        return used if isinstance(used, int) else None

    @property
    def as_message(self) -> dict[str, Any]:
        """Return it as the next request of a conversation repeats it."""
        base = {"role": "assistant", "content": self.content}
        return {**base, "tool_calls": list(self.calls)} if self.calls else base


def complete(body: str) -> ChatCompletion:
    """Read a reply that is not streamed.

    Raises:
        NotACompletion: it is none.
    """
    found = message(body)
    document = decoded(body)
    choice = at(document, "choices", 0)
    parts = MessageParts()
    parts.add(found)
    return ChatCompletion(
        parts.content,
        parts.reasoning,
        tuple(parts.calls),
        frozenset({text_of(at(document, "model"))}),
        text_of(at(choice, "finish_reason")),
        tuple(_tokens(choice)),
        _usage(document),
    )


def streamed(body: str) -> ChatCompletion:
    """Put a stream of server-sent events together.

    Raises:
        NotACompletion: there is no event in it.
    """
    parts = MessageParts()
    usage: dict[str, Any] = {}
    models, finish, ended, error, events = set(), "", False, "", 0
    for line in body.split("\n"):  # not at U+2028, which JSON may hold
        text = _data(line)
        ended = ended or text == "[DONE]"
        event = decoded(text)
        if not isinstance(event, dict):
            continue
        usage = _usage(event) or usage
        fault = at(event, "error")
        said = text_of(at(fault, "message")) or (short(str(fault)) if fault else "")
        error = error or said
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
    return ChatCompletion(
        parts.content,
        parts.reasoning,
        tuple(parts.calls),
        frozenset(models),
        finish,
        usage=usage,
        ended=ended,
        error=error,
    )


def has_text(line: str) -> bool:
    """Return True for a line of a stream that brings a part of the answer."""
    delta, parts = at(decoded(_data(line)), "choices", 0, "delta"), MessageParts()
    parts.add(delta if isinstance(delta, dict) else {})
    return parts != MessageParts()


def _data(line: str) -> str:
    return line.strip().removeprefix("data:").strip()


def _usage(document: Any) -> dict[str, Any]:
    found = at(document, "usage")
    return found if isinstance(found, dict) else {}


def _tokens(choice: Any) -> Iterator[tuple[str, float]]:
    """Yield tokens and log-probabilities; one that is no finite number comes as NaN."""
    rows = at(choice, "logprobs", "content")
    for row in rows if isinstance(rows, list) else ():
        value = at(row, "logprob")
        usual = isinstance(value, int | float) and not isinstance(value, bool)
        yield text_of(at(row, "token")), float(value) if usual and abs(value) < 1e30 else math.nan
