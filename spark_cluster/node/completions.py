"""A completion, whole or streamed, read as foreign input: by `verify`, and by the program `ask`."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_cluster.node.measure import PLAN
from spark_cluster.node.replies import (
    NotACompletion,
    at,
    decoded,
    error,
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
    message(body)
    return _put_together([decoded(body)], "message")


def streamed(body: str) -> ChatCompletion:
    """Put a stream of server-sent events together.

    Raises:
        NotACompletion: there is no event in it.
    """
    texts = [_data(line) for line in body.split("\n")]  # not at U+2028, which JSON may hold
    events = [event for event in map(decoded, texts) if isinstance(event, dict)]
    found = _put_together(events, "delta")
    if not (found.error or any(isinstance(_part(one, "delta"), dict) for one in events)):
        raise NotACompletion(body)
    return replace(found, ended="[DONE]" in texts)


def _put_together(events: Sequence[Any], key: str) -> ChatCompletion:
    """Return what one reply, or the events of a stream say.

    Args:
        key: of the part of the message in a choice.
    """
    parts, models, tokens = MessageParts(), set(), list[tuple[str, float]]()
    usage, finish, error = dict[str, Any](), "", ""
    for event in events:
        usage = _usage(event) or usage
        fault = at(event, "error")
        error = error or text_of(at(fault, "message")) or (short(str(fault)) if fault else "")
        models |= {event["model"]} if isinstance(event.get("model"), str) else set()
        part = _part(event, key)
        if isinstance(part, dict):
            parts.add(part)
            finish = text_of(at(event, "choices", 0, "finish_reason")) or finish
            tokens += _tokens(at(event, "choices", 0))
    return ChatCompletion(
        parts.content,
        parts.reasoning,
        tuple(parts.calls),
        frozenset(models),
        finish,
        tuple(tokens),
        usage,
        error=error,
    )


def _part(event: Any, key: str) -> Any:
    return at(event, "choices", 0, key)


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
    """Yield tokens and log-probabilities; one that is not a finite number comes as NaN."""
    rows = at(choice, "logprobs", "content")
    for row in rows if isinstance(rows, list) else ():
        value = at(row, "logprob")
        usual = isinstance(value, int | float) and not isinstance(value, bool)
        yield text_of(at(row, "token")), float(value) if usual and abs(value) < 1e30 else math.nan


# Ask a server questions one after the other, on a node: the program `ask FOLDER ID`.
#
# It runs as the login user. The plan in `FOLDER` has the questions; what was answered, and how long
# that took, goes to `FOLDER/raw/ID.json`. Whether the answers are right is judged on the laptop
# (`answers.py`).
#
# It goes to the engine itself on the loopback, which asks for no key, and through no proxy.

ROUNDS = 4
"""Most requests of a question: the model calls tools, gets their results, and goes on."""

BODY_BYTES = 4 * 1024 * 1024
"""Of an answer that is read."""


def main(folder: str, cell: str) -> int:
    """Ask the questions of a cell, until they are answered or SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return ask_all(Path(folder), cell)


def ask_all(folder: Path, cell: str) -> int:
    """Ask all questions of a cell, each as often as it has runs; returns the exit status."""
    cells = json.loads((folder / PLAN).read_text(encoding="utf-8"))["cells"]
    work = next(one["questions"] for one in cells if one["id"] == cell)
    answers = []
    for run in range(1, work["runs"] + 1):
        for question in work["questions"]:
            rounds = answer(work, question)
            answers.append({"question": question["id"], "run": run, "rounds": rounds})
            last = rounds[-1]
            how = last["error"] or f"{last['total_ms']:.0f} ms"
            print(f"run {run}, {question['id']}: {how}", flush=True)
    path = folder / "raw" / f"{cell}.json"
    path.write_text(written(answers, work["largest_bytes"]), encoding="utf-8")
    return 0


def written(answers: list[dict[str, Any]], largest: int) -> str:
    """Return the file of a cell's answers, in ASCII.

    Args:
        largest: bytes that it may have to be copied to the laptop. Replies are kept as they came as
            far as that allows, the first ones first; what was read from them is always kept.
    """
    text = json.dumps({"format": 1, "answers": answers})
    over = len(text) - largest
    for one in reversed([one for entry in answers for one in entry["rounds"]]):
        if over <= 0:
            break
        over -= len(json.dumps(one["body"])) - len('""')
        one["body"] = ""
    return json.dumps({"format": 1, "answers": answers})


def answer(work: dict[str, Any], question: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask a question; where it has results for tools, go on until the model calls none.

    Returns:
        Each request's status (0 without a whole answer), error, message, usage, and times in ms.
    """
    rounds: list[dict[str, Any]] = []

    def ask(messages: list[Any]) -> ChatCompletion:
        asked, found = _ask(work, question, messages)
        rounds.append(asked)
        return replace(found, calls=()) if asked["error"] else found

    converse(question, ask)
    return rounds


def converse(
    question: Mapping[str, Any], ask: Callable[[list[Any]], ChatCompletion]
) -> list[ChatCompletion]:
    """Ask a question; where it has results for tools, go on until the model calls none.

    Args:
        question: its `messages`, and perhaps `results` by tool.
        ask: makes a request with the messages so far.
    """
    messages, found = list(question["messages"]), list[ChatCompletion]()
    while len(found) < ROUNDS:
        found.append(one := ask(messages))
        if not one.calls or not question.get("results"):
            break
        messages += [one.as_message, *_results(one.calls, question["results"])]
    return found


def _results(calls: Sequence[Mapping[str, Any]], results: dict[str, str]) -> Iterator[Any]:
    for call in calls:
        text = results.get(call["function"]["name"], '{"error": "there is no such tool"}')
        yield {"role": "tool", "tool_call_id": call["id"], "content": text}


def _ask(
    work: dict[str, Any], question: dict[str, Any], messages: list[dict[str, Any]]
) -> tuple[dict[str, Any], ChatCompletion]:
    """Make a request; returns what is kept of it, and the answer."""
    asked: dict[str, Any] = {
        "model": work["model"],
        "messages": messages,
        "max_tokens": question["max_tokens"],
        "stream": question["stream"],
    }
    if work.get("temperature") is not None:
        asked["temperature"] = work["temperature"]
    if question["stream"]:
        asked["stream_options"] = {"include_usage": True}
    if question.get("tools"):
        asked |= {"tools": question["tools"], "tool_choice": "auto"}
    reply, found, why = Reply(), ChatCompletion(), ""
    started = time.monotonic()
    try:
        _post(work["base_url"], asked, reply, started + work["answer_s"])
        found, why = _read(reply, stream=question["stream"])
    except (OSError, http.client.HTTPException, ValueError) as failure:
        reply.status, why = 0, str(failure) or type(failure).__name__
    reasoning = {"reasoning": found.reasoning} if found.reasoning else {}
    return {
        "status": reply.status,
        "error": why,
        "message": {**found.as_message, **reasoning},
        "usage": found.usage,
        "first_ms": None if reply.first is None else (reply.first - started) * 1e3,
        "total_ms": (time.monotonic() - started) * 1e3,
        "body": reply.body.decode("utf-8", "replace"),
    }, found


@dataclass
class Reply:
    """A reply as far as it was read.

    Attributes:
        first: when the first token came, of a stream; seconds of the monotonic clock.
    """

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    first: float | None = None


def _post(base_url: str, asked: dict[str, Any], reply: Reply, until: float) -> None:
    """Make a request and read its reply.

    Raises:
        OSError, HTTPException: there is no whole reply.
    """
    where = urlsplit(base_url)
    connection = http.client.HTTPConnection(
        where.hostname or "", where.port, timeout=max(1.0, until - time.monotonic())
    )
    with contextlib.closing(connection):
        path = f"{where.path.rstrip('/')}/chat/completions"
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(asked).encode(), headers)
        answered = connection.getresponse()
        reply.status = answered.status
        while line := answered.readline(BODY_BYTES):
            reply.body += line
            if time.monotonic() > until:
                raise TimeoutError("the answer took too long")
            if len(reply.body) > BODY_BYTES:
                raise OSError(f"the answer has more than {BODY_BYTES >> 20} MiB")
            if (
                asked["stream"]
                and reply.first is None
                and has_text(line.decode("utf-8", "replace"))
            ):
                reply.first = time.monotonic()


def _read(reply: Reply, *, stream: bool) -> tuple[ChatCompletion, str]:
    """Return a reply's completion, and why it is no whole one; empty when it is."""
    body, cut = reply.body.decode("utf-8", "replace"), "the stream ended without [DONE]"
    if reply.status != HTTPStatus.OK:
        return ChatCompletion(), f"HTTP {reply.status}: {_said(body)}"
    try:
        found = streamed(body) if stream else complete(body)
    except NotACompletion as failure:
        return ChatCompletion(), cut if stream else str(failure)
    if found.error:
        return found, f"in the stream: {found.error}"
    return found, "" if found.ended else cut


def _said(body: str) -> str:
    """Return the message of an error of the server, or the beginning of what came, in one line."""
    return " ".join(error(body).split()) or "nothing"
