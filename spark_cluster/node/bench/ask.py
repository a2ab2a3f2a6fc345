"""Ask a server questions one after the other, on a node: the program `ask FOLDER ID`.

It runs as the login user. `FOLDER/questions.json` has the questions; what was answered, and how
long that took, goes to `FOLDER/raw/ID.json`. Whether the answers are right is judged on the laptop
(`answers.py`).

It goes to the engine itself on the loopback, which asks for no key, and through no proxy.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_cluster.node.replies import MessageParts, at, decoded, error

QUESTIONS = "questions.json"

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
    work = json.loads((folder / QUESTIONS).read_text(encoding="utf-8"))["cells"][cell]
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
    messages = list(question["messages"])
    rounds: list[dict[str, Any]] = []
    while len(rounds) < ROUNDS:
        found = _ask(work, question, messages)
        rounds.append(found)
        calls = found["message"].get("tool_calls") or []
        if found["error"] or not calls or not question.get("results"):
            break
        own = {name: found["message"][name] for name in ("role", "content", "tool_calls")}
        messages += [own, *_results(calls, question["results"])]
    return rounds


def _results(calls: list[dict[str, Any]], results: dict[str, str]) -> Iterator[dict[str, Any]]:
    for call in calls:
        text = results.get(call["function"]["name"], '{"error": "there is no such tool"}')
        yield {"role": "tool", "tool_call_id": call["id"], "content": text}


def _ask(
    work: dict[str, Any], question: dict[str, Any], messages: list[dict[str, Any]]
) -> dict[str, Any]:
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
    reply = Reply()
    started = time.monotonic()
    try:
        _post(work["base_url"], asked, reply, started + work["answer_s"])
    except (OSError, http.client.HTTPException, ValueError) as error:
        reply.error = reply.error or str(error) or type(error).__name__
        reply.status = 0
    return {
        "status": reply.status,
        "error": reply.error,
        "message": reply.message,
        "usage": reply.usage,
        "first_ms": None if reply.first is None else (reply.first - started) * 1e3,
        "total_ms": (time.monotonic() - started) * 1e3,
        "body": reply.body.decode("utf-8", "replace"),
    }


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
            if asked["stream"] and answered.status == 200:
                reply.event(line)
    if reply.status != 200:
        reply.error = f"HTTP {reply.status}: {_said(bytes(reply.body))}"
    elif not asked["stream"]:
        reply.whole()
    elif not reply.done:
        reply.error = "the stream ended before its end"


class Reply:
    """A reply as far as it was read.

    Attributes:
        first: when the first token came, of a stream; seconds of the monotonic clock.
        done: a stream's own end has come.
    """

    def __init__(self) -> None:
        self.status = 0
        self.error = ""
        self.body = bytearray()
        self.first: float | None = None
        self.done = False
        self.usage: dict[str, Any] = {}
        self._parts = MessageParts()

    @property
    def message(self) -> dict[str, Any]:
        """The message as it was put together."""
        parts = self._parts
        more = {"reasoning": parts.reasoning, "tool_calls": parts.calls}
        told = {name: value for name, value in more.items() if value}
        return {"role": "assistant", "content": parts.content, **told}

    def whole(self) -> None:
        """Read a reply that is no stream."""
        data = decoded(bytes(self.body))
        found = at(data, "choices", 0, "message")
        if not isinstance(found, dict):
            self.error = f"it is no chat completion: {_said(bytes(self.body))}"
            return
        self._usage(data)
        self._parts.add(found)

    def event(self, line: bytes) -> None:
        """Take a line of a stream."""
        text = line.strip().removeprefix(b"data:").strip()
        if text == b"[DONE]":
            self.done = True
        data = decoded(text)
        if isinstance(at(data, "error"), dict):
            self.error = f"in the stream: {_said(text)}"
        self._usage(data)
        delta = at(data, "choices", 0, "delta")
        if isinstance(delta, dict):
            self._parts.add(delta)
            if self.first is None and self._parts != MessageParts():
                self.first = time.monotonic()

    def _usage(self, data: Any) -> None:
        usage = at(data, "usage")
        if isinstance(usage, dict):
            self.usage = usage


def _said(body: bytes) -> str:
    """Return the message of an error of the server, or the beginning of what came, in one line."""
    return " ".join(error(body.decode("utf-8", "replace")).split()) or "nothing"
