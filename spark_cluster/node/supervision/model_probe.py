"""The request that a model of each kind has to answer, and its answer read as foreign input.

Standard library only: the laptop asks through a node, supervision and the model loader on it.
"""

from __future__ import annotations

import io
import json
import math
import struct
import wave
from collections.abc import Mapping, Sequence
from typing import Any

from spark_cluster.node import replies
from spark_cluster.node.containers import Kind
from spark_cluster.node.health import Completion

_TEXT = "Is anyone there?"


def request_of(
    kind: Kind, model: str, question: str, max_tokens: int
) -> tuple[str, str | bytes, str]:
    """Return path, body and content type of the request of a kind."""
    if kind == "transcription":
        fields = {"model": model, "response_format": "json"}
        return "/v1/audio/transcriptions", form(fields, "tone.wav", tone(0.5)), FORM_TYPE
    asked: dict[str, Any] = {"model": model}
    if kind == "chat":
        path = "/v1/chat/completions"
        asked |= {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
    elif kind == "embedding":
        path = "/v1/embeddings"
        asked |= {"input": [_TEXT], "encoding_format": "float"}
    else:
        path = "/v1/rerank"
        asked |= {"query": _TEXT, "documents": [_TEXT]}
    return path, json.dumps(asked), "application/json"


def completion_of(kind: Kind, status: int, body: str, reason: str = "") -> Completion:
    """Return what a server's reply to such a request says, by its status of HTTP."""
    if status != 200:
        return Completion(status, why=reason or replies.error(body))
    try:
        return Completion(200, _shown(kind, body))
    except (replies.NotACompletion, NotVectors) as error:
        return Completion(200, why=str(error))


def _shown(kind: Kind, body: str) -> str:
    """Return a good answer of a chat model, or a few words on one of another kind.

    Raises:
        NotACompletion, NotVectors: it is none.
    """
    if kind == "chat":
        return replies.message_of(body)
    document = replies.decoded(body)
    if kind == "embedding":
        return f"{len(vectors(document, 1)[0])} numbers"
    if kind == "reranking":
        return f"score {scores(document, 1)[0]:.3g}"
    if not isinstance(replies.at(document, "text"), str):
        raise NotVectors(f"no text came: {replies.short(str(document))}")
    return "a transcript"


# -- vectors and scores, judged without knowing the model ------------------------------------------

UNIT = 0.01
"""Largest deviation of a normalised vector's length from 1: BF16 keeps eight bits of each number,
whose errors cancel out over hundreds of them."""

SAME = 0.99
"""Least cosine of two embeddings of one text: other texts in the batch change rounding only."""

DISTINCT = 0.9999
"""Cosine above which embeddings of two unrelated sentences are one and the same."""

Vector = Sequence[float]


class NotVectors(ValueError):
    """A reply without the numbers that were asked for; its text says what came instead."""


def vectors(document: Any, count: int) -> list[Vector]:
    """Return the embeddings of an OpenAI reply, in the order of what was asked.

    Raises:
        NotVectors: there are fewer or more, or one is no list of finite numbers.
    """
    rows = replies.at(document, "data")
    if not isinstance(rows, list) or len(rows) != count:
        came = f"{len(rows)} embeddings" if isinstance(rows, list) else "no list of embeddings"
        raise NotVectors(f"{came} came, expected {count}")
    found: dict[int, Vector] = {}
    for place, row in enumerate(rows):
        index = replies.at(row, "index")
        at = index if isinstance(index, int) and 0 <= index < count else place
        found[at] = _vector(replies.at(row, "embedding"))
    if len(found) != count:
        raise NotVectors(f"indexes repeat: {count} embeddings came for {len(found)} texts")
    return [found[at] for at in range(count)]


def scores(document: Any, count: int) -> list[float]:
    """Return the scores of a rerank or score reply, in the order of the documents.

    vLLM answers `results` with `relevance_score` (/rerank) or `data` with `score` (/score), SGLang
    a list with `score`.

    Raises:
        NotVectors: a document has no score, or one that is no finite number.
    """
    rows = document if isinstance(document, list) else None
    rows = rows if rows is not None else replies.at(document, "results")
    rows = rows if rows is not None else replies.at(document, "data")
    if not isinstance(rows, list):
        raise NotVectors("no list of results came")
    found: dict[int, float] = {}
    for row in rows:
        index, score = replies.at(row, "index"), replies.at(row, "relevance_score")
        score = score if score is not None else replies.at(row, "score")
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < count:
            found[index] = _number(score, "score")
    if len(found) != count:
        raise NotVectors(f"{len(found)} of {count} documents have a score")
    return [found[at] for at in range(count)]


def length(vector: Vector) -> float:
    """Return the Euclidean length."""
    return math.sqrt(sum(number * number for number in vector))


def cosine(one: Vector, other: Vector) -> float:
    """Return the cosine of the angle; 0 where one is all zeros or the lengths differ."""
    product = length(one) * length(other)
    if not product or not math.isfinite(product) or len(one) != len(other):
        return 0.0
    return sum(a * b for a, b in zip(one, other, strict=True)) / product


def _vector(value: Any) -> Vector:
    if not isinstance(value, list) or not value:
        raise NotVectors("an embedding is no list of numbers")
    return [_number(number, "embedding") for number in value]


def _number(value: Any, what: str) -> float:
    """A finite number; JSON has no NaN, so servers write null or NaN for it."""
    usual = isinstance(value, int | float) and not isinstance(value, bool)
    if not usual or not abs(value) < 1e30:
        raise NotVectors(f"the {what} holds {replies.short(str(value))}, expected finite numbers")
    return float(value)


# -- a sound, and the form in which it is sent -----------------------------------------------------

RATE = 16_000
"""Samples/s, which speech models work with."""

BOUNDARY = "spark-cluster-3f6c0a7d2b9e4815"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def tone(seconds: float = 1.0, hertz: float = 440.0) -> bytes:
    """Return a WAV file with a quiet tone (mono, 16 bits). Speech cannot be made without a tool."""
    samples = [
        round(8000 * math.sin(2 * math.pi * hertz * at / RATE)) for at in range(int(seconds * RATE))
    ]
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return target.getvalue()


def form(fields: Mapping[str, str], name: str, content: bytes) -> bytes:
    """Return the body of a multipart form (RFC 7578): its fields, and one WAV file as `file`."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), content, f"\r\n--{BOUNDARY}--\r\n".encode()])
